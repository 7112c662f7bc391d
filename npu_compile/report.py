"""What the backend did, as data: one :class:`GraphReport` a graph, one :class:`Report` a program.

Reports hold strings and numbers only: no tensor, module or graph is kept alive by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .passes.site import SiteOutcome


@dataclass(frozen=True)
class CaptureReport:
    """How a graph is captured and replayed.

    ``update_plan``: rows of (record, operator, call, length argument, source), see docs/capture.md;
    ``lengths`` what reading a step's lengths costs; ``sizes`` the batch sizes that batches are padded to,
    None: as they come; ``refusal`` why the graph is not captured.
    """

    update_plan: tuple[tuple[str, ...], ...] = ()
    lengths: str = ""
    sizes: tuple[int, ...] | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class GraphReport:
    """What became of the attention of one graph that dynamo handed to the backend.

    ``name`` is dynamo's compile id (``"0/1"``: the first code object's second compilation);
    ``target`` the machine lowered for; ``execution`` where the graph runs, such as
    ``"reference (cpu)"``; ``timings`` seconds by pass; ``notes`` sentences about the whole graph;
    ``capture`` how it is captured, None where that was not asked for.
    """

    name: str
    sites: tuple[SiteOutcome, ...] = ()
    target: str = "cpu"
    execution: str = ""
    timings: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    capture: CaptureReport | None = None

    @property
    def lowered(self) -> tuple[SiteOutcome, ...]:
        return tuple(site for site in self.sites if site.lowered)

    @property
    def left(self) -> tuple[SiteOutcome, ...]:
        """The sites that were left as they were; each has a ``reason``."""
        return tuple(site for site in self.sites if not site.lowered)


@dataclass(frozen=True)
class Report:
    """The graphs of one program, in the order they were compiled (say: prefill, decode)."""

    graphs: tuple[GraphReport, ...] = ()

    @property
    def sites(self) -> tuple[SiteOutcome, ...]:
        return tuple(site for graph in self.graphs for site in graph.sites)

    @property
    def lowered(self) -> tuple[SiteOutcome, ...]:
        return tuple(site for graph in self.graphs for site in graph.lowered)

    @property
    def left(self) -> tuple[SiteOutcome, ...]:
        """The sites that were left as they were; each has a ``reason``."""
        return tuple(site for graph in self.graphs for site in graph.left)

    def to_dict(self) -> dict[str, Any]:
        """The report for machines: only dicts, lists, strings, numbers, booleans and None."""
        return {
            "sites": len(self.sites),
            "lowered": len(self.lowered),
            "graphs": [_graph_dict(graph) for graph in self.graphs],
        }

    def __str__(self) -> str:
        from .report_table import render

        return render(self)

    def print(self) -> None:
        """Print the table on the terminal, as wide as the terminal is."""
        from .report_table import show

        show(self)


def _graph_dict(graph: GraphReport) -> dict[str, Any]:
    sites = [{**dataclasses.asdict(site), "lowered": site.lowered} for site in graph.sites]
    for site in sites:
        site["notes"] = list(site["notes"])
    return {
        "name": graph.name,
        "target": graph.target,
        "execution": graph.execution,
        "timings": dict(graph.timings),
        "notes": list(graph.notes),
        "capture": _capture_dict(graph.capture),
        "sites": sites,
    }


def _capture_dict(capture: CaptureReport | None) -> dict[str, Any] | None:
    if capture is None:
        return None
    return {
        "update_plan": [list(row) for row in capture.update_plan],
        "lengths": capture.lengths,
        "sizes": None if capture.sizes is None else list(capture.sizes),
        "refusal": capture.refusal,
    }
