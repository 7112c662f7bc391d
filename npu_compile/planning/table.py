"""A plan on the terminal: what `explain` shows of each step, and what its attention costs."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..console import WIDTH, console
from . import words
from .result import Plan, SitePlan, StepPlan


def show(plan: Plan) -> None:
    """Print ``plan`` on the terminal."""
    console().print(Group(*_layout(plan)))


def render(plan: Plan, width: int = WIDTH) -> str:
    """``plan`` as plain text of at most ``width`` columns."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(Group(*_layout(plan)))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _layout(plan: Plan) -> Iterator[RenderableType]:
    yield Text(
        f"{plan.name} ({plan.model}) on {plan.target}, {plan.dtype}: {words.sizes(plan)}", style="bold"
    )
    for line in (*map(words.stack, plan.stacks), words.machine(plan), *plan.notes):
        yield Text(line)
    for step in plan.steps:
        yield Text(f"\n{step.name}: {step.what}", style="bold cyan")
        yield Text(str(step.report))
        if step.sites:
            yield Text("\nits attention, as written → as planned", style="bold")
            yield _costs(step)
    yield Text(f"\nplanned in {plan.seconds:.1f} s", style="dim")


def _costs(step: StepPlan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("n", justify="right")
    table.add_column("where", ratio=1, overflow="fold")
    for name in ("FLOPs", "KV read", "mask"):
        table.add_column(name, justify="right")
    table.add_column("time ≥", justify="right", no_wrap=True)
    for site in step.sites:
        table.add_row(str(site.count), site.where, *_row(site))
    seconds = "" if step.seconds is None else words.duration(step.seconds)
    table.add_row(
        str(sum(site.count for site in step.sites)),
        "in total",
        *map(_change, words.figures(step.program), words.figures(step.cost)),
        seconds,
        style="bold",
    )
    return table


def _row(site: SitePlan) -> tuple[str, ...]:
    if site.cost is None or site.program is None:
        return "unknown", "", "", ""
    estimate = site.estimate
    return (
        *map(_change, words.figures(site.program), words.figures(site.cost)),
        "" if estimate is None else f"{words.duration(estimate.seconds)} ({estimate.bound})",
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
