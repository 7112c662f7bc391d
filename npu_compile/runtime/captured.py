"""The callable that stands for a lowered graph: captured once per shape, then updated and replayed."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import AscendFiaError, describe
from .capture_of_shape import Capture
from .errors import CaptureError, MovedInputError
from .inputs import BoundInputs, InputRoles
from .interface import CapturedGraph, GraphRuntime, as_tuple
from .length_source import LengthSource
from .options import CaptureOptions
from .outputs import Outputs
from .padding import padding_for
from .runtimes import runtime_for
from .split import Split, split
from .stats import CaptureStats
from .turns import Turns
from .update_plan import Update, UpdatePlan

logger = logging.getLogger(__name__)

Key = tuple[Any, ...]

_CAPTURING = threading.Lock()
"""A process can capture one graph at a time."""

_callables: weakref.WeakSet[CapturedCallable] = weakref.WeakSet()
"""All captured callables, for :func:`reset`; none is kept alive by it."""

MAX_UNUSED = 8
"""Captures without a replay in between; after that, new shapes or addresses aren't captured any more."""


class CapturedCallable:
    """Called as the graph module it was made from.

    The first call of a shape runs uncaptured, which is the warm-up a capture needs, and captures after
    that; every later call is one update and one replay. What can't be captured runs uncaptured, with the
    reason in ``stats.fallbacks`` (or raises, see :class:`CaptureOptions`).

    The caller guarantees that sizes, strides and dtypes of parameters and caches don't change under one
    address, as dynamo's guards do.
    """

    def __init__(
        self, gm: fx.GraphModule, options: CaptureOptions, runtime: GraphRuntime | None = None
    ) -> None:
        self.options = options
        self.stats = CaptureStats()
        self._gm = gm
        self._given_runtime = runtime
        self._returns_one = not isinstance(gm.graph.output_node().args[0], list | tuple)
        self._turns = Turns(refuse=options.threads == "refuse")
        self._captures: dict[Key, Capture] = {}
        self._refusals: dict[Key, str] = {}
        self._unused = 0
        self._roles: InputRoles | None = None
        self._runtime: GraphRuntime | None = runtime
        self.refusal: str | None = None
        to_capture, self._padding, self.padding_refusal = padding_for(gm, options)
        try:
            self._split = split(to_capture)
        except CaptureError as error:
            self._split, self.refusal = Split(gm, UpdatePlan(), ()), self._refused(error)
        self._source = LengthSource(self._split, self.stats, options.mirror_counters)
        _callables.add(self)

    @property
    def plan(self) -> UpdatePlan:
        """What each record of a captured graph is given before a replay."""
        return self._split.plan

    @property
    def lengths_cost(self) -> str:
        """Where a step's lengths come from, in words."""
        return self._source.cost

    @property
    def capture_sizes(self) -> tuple[int, ...] | None:
        """The batch sizes that batches are padded to; None where they are captured as they come."""
        return self._padding.sizes if self._padding else None

    @property
    def graphs(self) -> list[CapturedGraph]:
        """The captured graphs, in the order of their capture."""
        return [capture.graph for capture in self._captures.values()]

    def __call__(self, *args: Any) -> Any:
        with self._turns.turn("the captured callable"):
            results = self._run_padded(args) if self._padding else self._run(args)
        return results[0] if self._returns_one else results

    def reset(self) -> None:
        """Let go of every graph, buffer and tensor. The next call captures anew, with the same options."""
        with self._turns.turn("reset"):
            for capture in self._captures.values():
                capture.graph.reset()
            self._captures.clear()
            self._refusals.clear()
            self._unused = 0
            self._source.forget()
            if self._padding:
                self._padding.forget()
            self._roles, self._runtime = None, self._given_runtime

    def _run_padded(self, args: Sequence[Any]) -> Sequence[Any]:
        assert self._padding is not None
        batch = self._padding.batch(args)
        size = self._padding.select(batch)
        if size is None:
            reason = f"a batch of {batch} is larger than all capture sizes {self._padding.sizes}"
            if self.options.on_oversize == "error":
                raise AscendFiaError("batch", batch, reason)
            return self._uncaptured(args, reason)
        if size == batch:
            return self._run(args)
        return self._padding.cut(self._run(self._padding.pad(args, size)), batch)

    def _run(self, args: Sequence[Any]) -> Sequence[Any]:
        reason = self.refusal or _grad_refusal(args)
        if reason is not None:
            return self._uncaptured(args, reason)
        if self._roles is None:
            self._roles = InputRoles.of(args, self._split)
        key = self._roles.key(args)
        capture = self._captures.get(key)
        if capture is not None and not capture.bound.addresses.unchanged(args):
            self._drop_moved(key, capture, args)
            capture = None
        if capture is not None:
            return self._replay(capture, args)
        reason = self._refusals.get(key) or self._full()
        if reason is not None:
            return self._uncaptured(args, reason)
        return self._warm_up_and_capture(key, args)

    def _replay(self, capture: Capture, args: Sequence[Any]) -> list[Any]:
        assert self._runtime is not None
        self._runtime.fence()
        ints, int_results = self._ints(args)
        try:
            updates = self.plan.updates(self._source.lengths(args))
            results = capture.replay(args, ints, updates)
        except BaseException:
            self._source.forget()
            raise
        self._source.commit(args)
        self.stats.replays += 1
        self.stats.updates += capture.graph.waits
        self._unused = 0
        return self._with_ints(results, int_results)

    def _warm_up_and_capture(self, key: Key, args: Sequence[Any]) -> Sequence[Any]:
        assert self._roles is not None
        try:
            read = [args[i] for i in sorted(self._split.read)]
            self._runtime = self._runtime or runtime_for(read)
        except CaptureError as error:
            self._refusals[key] = self._refused(error)
            return self._uncaptured(args, self._refusals[key])
        self._runtime.fence()
        ints, int_results = self._ints(args)
        bound = self._roles.bind(args, len(ints))
        bound.write(args, ints)
        updates = self.plan.resolve(self._source.lengths(args))
        results = self._runtime.eager(self._split, [*args, *bound.ints], updates)
        self.stats.warmups += 1
        try:
            self._captures[key] = self._capture(args, bound, updates)
        except CaptureError as error:
            self._refusals[key] = self._refused(error)
        finally:
            self._source.commit(args)
        return self._with_ints(list(results), int_results)

    def _capture(self, args: Sequence[Any], bound: BoundInputs, updates: Sequence[Update]) -> Capture:
        assert self._runtime is not None
        with _CAPTURING, torch.no_grad():
            graph = self._runtime.capture(self._split, bound.values, updates)
        self.stats.captures += 1
        self._unused += 1
        counters = [args[i] for i in self._split.mutated if not args[i].is_floating_point()]
        return Capture(graph, bound, counters, Outputs(args, bound.values, graph.outputs))

    def _ints(self, args: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]]:
        """The values of the body's int tensors, and of the graph's int results."""
        return self._split.ints.run(args) if self._split.ints else ((), ())

    def _with_ints(self, results: list[Any], int_results: Sequence[int]) -> list[Any]:
        if self._split.ints:
            for position, value in zip(self._split.ints.results, int_results, strict=True):
                results[position] = value
        return results

    def _drop_moved(self, key: Key, capture: Capture, args: Sequence[Any]) -> None:
        """Drop a capture whose tensors have moved, or say that they have."""
        names = [node.name for node in self._gm.graph.nodes if node.op == "placeholder"]
        positions = capture.bound.addresses.moved(args)
        moved = ", ".join(f"{names[i]}={describe(args[i])}" for i in positions)
        if self.options.on_move == "error":
            raise MovedInputError(
                f"{moved}: not at the address the graph was captured with; write weights and caches in "
                "place, or call reset()"
            )
        logger.info("capturing anew: %s moved", moved)
        capture.graph.reset()
        del self._captures[key]
        self.stats.recaptures += 1

    def _refused(self, error: CaptureError) -> str:
        """The reason of a refusal, as a log line, or raised if the options say so."""
        if self.options.on_refusal == "error":
            raise error
        logger.warning("not captured: %s", error)
        return str(error)

    def _full(self) -> str | None:
        if self._unused >= MAX_UNUSED:
            return f"{MAX_UNUSED} captures in a row were never replayed: shapes or addresses don't repeat"
        if len(self._captures) >= self.options.max_graphs:
            return f"{self.options.max_graphs} shapes are captured already (max_graphs)"
        return None

    def _uncaptured(self, args: Sequence[Any], reason: str) -> Sequence[Any]:
        self.stats.fallbacks[reason] += 1
        return as_tuple(self._gm(*args))


def reset() -> None:
    """Reset every captured callable of the process; see :meth:`CapturedCallable.reset`."""
    for function in list(_callables):
        function.reset()


def _grad_refusal(args: Sequence[Any]) -> str | None:
    if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return "gradients are wanted; captured graphs have none (use torch.no_grad())"
    return None
