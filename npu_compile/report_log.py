"""Which graphs `last_report()` covers: those that torch.compile compiled for one program.

Dynamo calls a backend once a graph and doesn't say which program the graph is part of: a model
is several graphs (prefill and decode, the parts around a graph break, functions called between
those), and models of one class share their code. A graph belongs to the report under way if the
options are the same and

* the compiled module or function that is running is the same, or
* it reads a weight that an earlier graph of the report read.

Otherwise a new report begins.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import eval_frame

from .options import Options
from .report import GraphReport, Report


@dataclass(frozen=True)
class Origin:
    """What tells which program a graph is part of: the weights it reads, and the program if known."""

    weights: Sequence[torch.Tensor] = ()
    program: object = None


class ReportLog:
    """Groups graphs into reports. Weights and programs are held by weak references only."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything; the next graph begins a new report."""
        self._options: tuple[Any, ...] = ()
        self._graphs: list[GraphReport] = []
        self._seen: list[weakref.ref[Any]] = []

    def record(self, graph: GraphReport, origin: Origin, options: Options) -> None:
        """Add a graph to the report it belongs to."""
        known = {id(held) for reference in self._seen if (held := reference()) is not None}
        parts = [*origin.weights, *([] if origin.program is None else [origin.program])]
        fresh = [part for part in parts if id(part) not in known]
        if len(fresh) == len(parts) or options.signature() != self._options:
            self.clear()
            self._options, fresh = options.signature(), parts
        self._graphs.append(graph)
        self._seen += map(weakref.ref, fresh)

    def report(self) -> Report:
        """The report under way; without graphs if nothing was compiled."""
        return Report(tuple(self._graphs))


def origin_of(gm: fx.GraphModule) -> Origin:
    """Where a graph comes from, asked while dynamo has the backend compile it."""
    inputs = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
    values = [argument.example for argument in inputs if argument is not None]
    weights = [value for value in values if isinstance(value, torch.nn.Parameter)]
    return Origin((*weights, *gm.parameters()), _running_program())


def _running_program() -> object:
    """The module or function of the outermost torch.compile that is being called; None if unknown.

    It is on the stack only: the call has `torch._dynamo.eval_frame.OptimizeContext` as ``self`` and
    what was compiled as ``fn``. Inner functions of the program are compiled while it runs.
    """
    program = None
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_filename == eval_frame.__file__:
            context = frame.f_locals.get("self")
            if isinstance(context, eval_frame.OptimizeContext):
                program = frame.f_locals.get("fn", program)
    return getattr(program, "__self__", program)


_LOG = ReportLog()


def record(graph: GraphReport, gm: fx.GraphModule, options: Options) -> None:
    """Note what the backend did with ``gm``, a graph as dynamo gave it."""
    _LOG.record(graph, origin_of(gm), options)


def last_report() -> Report:
    """The report of what torch.compile(..., backend="ascend_fia") compiled last."""
    return _LOG.report()


def reset() -> None:
    """Forget the last report, as ``torch.compiler.reset()`` forgets what was compiled."""
    _LOG.clear()
