"""Which graphs `last_report()` covers: those that torch.compile compiled for one program.

Dynamo calls a backend once a graph and doesn't say which ``torch.compile`` call the graph is
for, and models of one class share their code object. What tells programs apart is their
weights. A graph belongs to the report under way if the options are the same and

* it reads a weight that an earlier graph read (a model's prefill and decode do), or
* it continues a frame after a graph break, or
* it reads no weight and comes from a code object that the report has (a recompilation).

Otherwise a new report begins.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX

from .options import Options
from .report import GraphReport, Report


@dataclass(frozen=True)
class GraphTraits:
    """What of a graph says which program it is part of."""

    weights: Sequence[torch.Tensor] = ()
    resumed: bool = False
    """It continues a frame after a graph break."""


class ReportLog:
    """Groups graphs into reports. Weights are held by weak references only."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything; the next graph begins a new report."""
        self._options: tuple[Any, ...] = ()
        self._graphs: list[GraphReport] = []
        self._weights: list[weakref.ref[torch.Tensor]] = []
        self._frames: set[str] = set()

    def record(self, graph: GraphReport, traits: GraphTraits, options: Options) -> None:
        """Add a graph to the report it belongs to."""
        known = {id(weight) for weight in self._alive()}
        fresh = [weight for weight in traits.weights if id(weight) not in known]
        frame = graph.name.rpartition("/")[0]  # all compilations of one code object share it
        shares = len(fresh) < len(traits.weights) or (not traits.weights and frame in self._frames)
        if options.signature() != self._options or not (shares or traits.resumed):
            self.clear()
            self._options, fresh = options.signature(), list(traits.weights)
        self._graphs.append(graph)
        self._frames.add(frame)
        self._weights += map(weakref.ref, fresh)

    def report(self) -> Report:
        """The report under way; without graphs if nothing was compiled."""
        return Report(tuple(self._graphs))

    def _alive(self) -> list[torch.Tensor]:
        return [weight for reference in self._weights if (weight := reference()) is not None]


def traits_of(gm: fx.GraphModule) -> GraphTraits:
    """Read the traits of a graph as dynamo hands it to a backend."""
    inputs = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
    values = [argument.example for argument in inputs if argument is not None]
    weights = [value for value in values if isinstance(value, torch.nn.Parameter)]
    resumed = any(
        TORCH_DYNAMO_RESUME_IN_PREFIX in (node.meta.get("stack_trace") or "") for node in gm.graph.nodes
    )
    return GraphTraits((*weights, *gm.parameters()), resumed)


_LOG = ReportLog()


def record(graph: GraphReport, gm: fx.GraphModule, options: Options) -> None:
    """Note what the backend did with ``gm``, a graph as dynamo gave it."""
    _LOG.record(graph, traits_of(gm), options)


def last_report() -> Report:
    """The report of what torch.compile(..., backend="ascend_fia") compiled last."""
    return _LOG.report()


def reset() -> None:
    """Forget the last report, as ``torch.compiler.reset()`` forgets what was compiled."""
    _LOG.clear()
