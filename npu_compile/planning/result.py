"""A plan as data: what becomes of a model's attention on a machine, and what it costs there."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..passes.site import SiteOutcome
from ..report import Report
from .cost import Cost, total
from .machines import Machine


@dataclass(frozen=True)
class Estimate:
    """The least time that operations and memory traffic take: the longer of the two."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"


@dataclass(frozen=True)
class SitePlan:
    """One attention computation, and the layers of the model in which it is the same.

    ``where`` names all of them, ``site`` is the first one's outcome. ``program`` is what it costs as
    written, ``cost`` what it costs as planned, for one layer; None where nothing is known of its sizes.
    """

    where: str
    layers: tuple[int, ...]
    site: SiteOutcome
    program: Cost | None
    cost: Cost | None
    estimate: Estimate | None

    @property
    def count(self) -> int:
        return max(len(self.layers), 1)


@dataclass(frozen=True)
class StepPlan:
    """One call of the model: ``name`` is "prefill", "decode" or "forward", ``what`` says what goes in.

    ``report`` is what `explain` shows, at the model's full depth.
    """

    name: str
    what: str
    sites: tuple[SitePlan, ...]
    report: Report

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for graph in self.report.graphs for note in graph.notes)

    @property
    def program(self) -> Cost:
        return total(site.program.times(site.count) for site in self.sites if site.program is not None)

    @property
    def cost(self) -> Cost:
        return total(site.cost.times(site.count) for site in self.sites if site.cost is not None)

    @property
    def seconds(self) -> float | None:
        """The sum of the sites' estimates; None without a machine's figures."""
        known = [site.estimate.seconds * site.count for site in self.sites if site.estimate is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class StackPlan:
    """A stack of layers: ``kinds`` are the layers of each kind, ``planned`` how many layers were compiled.

    ``met`` is False where the steps found no attention in it, or don't run it.
    """

    path: str
    layers: int
    planned: int
    kinds: tuple[tuple[int, ...], ...]
    met: bool


@dataclass(frozen=True)
class Plan:
    """What :func:`npu_compile.plan` found. ``cache`` and ``prompt`` are None where the model has none.

    ``machine`` holds the peak figures of the target; where it is None, ``no_estimate`` says why.
    """

    name: str
    model: str
    target: str
    dtype: str
    batch: int
    prompt: int | None
    cache: int | None
    machine: Machine | None
    no_estimate: str
    stacks: tuple[StackPlan, ...]
    steps: tuple[StepPlan, ...]
    notes: tuple[str, ...]
    seconds: float
    """What planning took."""

    @property
    def sites(self) -> tuple[SitePlan, ...]:
        return tuple(site for step in self.steps for site in step.sites)

    def to_dict(self) -> dict[str, Any]:
        """The plan for machines: only dicts, lists, strings, numbers, booleans and None."""
        plain = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("machine", "stacks", "steps", "notes")
        }
        return {
            **plain,
            "machine": None if self.machine is None else dataclasses.asdict(self.machine),
            "stacks": [_plain(dataclasses.asdict(stack)) for stack in self.stacks],
            "notes": list(self.notes),
            "steps": [_step(step) for step in self.steps],
        }

    def __str__(self) -> str:
        from .table import render

        return render(self)

    def print(self) -> None:
        """Print the plan on the terminal."""
        from .table import show

        show(self)

    def html(self) -> str:
        """The plan as one page that needs nothing else."""
        from .page import page

        return page(self)


def _step(step: StepPlan) -> dict[str, Any]:
    return {
        "name": step.name,
        "what": step.what,
        "program": dataclasses.asdict(step.program),
        "cost": dataclasses.asdict(step.cost),
        "seconds": step.seconds,
        "notes": list(step.notes),
        "sites": [_site(site) for site in step.sites],
    }


def _site(site: SitePlan) -> dict[str, Any]:
    estimate = site.estimate
    return {
        "where": site.where,
        "count": site.count,
        "layers": list(site.layers),
        **_plain(dataclasses.asdict(site.site)),
        "lowered": site.site.lowered,
        "program": None if site.program is None else dataclasses.asdict(site.program),
        "cost": None if site.cost is None else dataclasses.asdict(site.cost),
        "seconds": None if estimate is None else estimate.seconds,
        "bound": None if estimate is None else estimate.bound,
    }


def _plain(value: Any) -> Any:
    """``value`` with lists for tuples."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
