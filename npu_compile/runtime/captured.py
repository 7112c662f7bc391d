"""The callable that stands for a lowered graph: captured once per shape, then updated and replayed."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .errors import CaptureError, MovedInputError
from .inputs import InputRoles
from .interface import CapturedGraph, GraphRuntime, as_tuple
from .length_source import LengthSource
from .options import CaptureOptions
from .outputs import Output, plan_outputs
from .runtimes import runtime_for
from .split import Split, split
from .stats import CaptureStats
from .turns import Turns
from .update_plan import Update, UpdatePlan

logger = logging.getLogger(__name__)

Key = tuple[Any, ...]

_CAPTURING = threading.Lock()
"""A process can capture one graph at a time."""

MAX_WASTED = 3
"""Captures in a row whose tensors moved before the first replay; after that the shape isn't captured."""


@dataclass(frozen=True)
class Capture:
    """One captured shape: its graph, what it was captured with, and how its results are handed out."""

    graph: CapturedGraph
    bound: list[Any]
    addresses: list[int]
    written: list[Tensor]
    outputs: list[Output]


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
        self._wasted: Counter[Key] = Counter()
        self._roles: InputRoles | None = None
        self._runtime: GraphRuntime | None = runtime
        self._refusal: str | None = None
        try:
            self._split = split(gm)
        except CaptureError as error:
            self._split, self._refusal = Split(gm, UpdatePlan(), ()), self._refused(error)
        self._source = LengthSource(self._split, self.stats, options.mirror_counters)

    @property
    def plan(self) -> UpdatePlan:
        """What each record of a captured graph is given before a replay."""
        return self._split.plan

    @property
    def graphs(self) -> list[CapturedGraph]:
        """The captured graphs, in the order of their capture."""
        return [capture.graph for capture in self._captures.values()]

    def __call__(self, *args: Any) -> Any:
        with self._turns.turn("the captured callable"):
            results = self._run(args)
        return results[0] if self._returns_one else results

    def reset(self) -> None:
        """Let go of every graph, buffer and tensor. The next call captures anew, with the same options."""
        with self._turns.turn("reset"):
            for capture in self._captures.values():
                capture.graph.reset()
            self._captures.clear()
            self._refusals.clear()
            self._wasted.clear()
            self._source.forget()
            self._roles, self._runtime = None, self._given_runtime

    def _run(self, args: Sequence[Any]) -> tuple[Any, ...]:
        reason = self._refusal or _grad_refusal(args)
        if reason is not None:
            return self._uncaptured(args, reason)
        if self._roles is None:
            self._roles = InputRoles.of(args, self._split.mutated)
        key = self._roles.key(args)
        capture = self._captures.get(key)
        if capture is not None and self._roles.addresses(args) != capture.addresses:
            self._drop_moved(key, capture, args)
            capture = None
        if capture is not None:
            return self._replay(key, capture, args)
        reason = self._refusals.get(key) or self._full()
        if reason is not None:
            return self._uncaptured(args, reason)
        return self._warm_up_and_capture(key, args)

    def _replay(self, key: Key, capture: Capture, args: Sequence[Any]) -> tuple[Any, ...]:
        assert self._roles is not None and self._runtime is not None
        self._runtime.fence()
        for i in self._roles.copied:
            capture.bound[i].copy_(args[i])
        try:
            updates = self.plan.updates(self._source.lengths(args))
            if updates:
                capture.graph.update(updates)
                self.stats.updates += 1
            capture.graph.replay()
        except BaseException:
            self._source.forget()
            raise
        # A replay writes to memory without telling autograd's version counters.
        torch._C._increment_version(capture.written)
        self._source.commit(args)
        self.stats.replays += 1
        self._wasted.pop(key, None)
        return tuple(
            hand_out(args, result)
            for hand_out, result in zip(capture.outputs, capture.graph.outputs, strict=True)
        )

    def _warm_up_and_capture(self, key: Key, args: Sequence[Any]) -> tuple[Any, ...]:
        try:
            self._runtime = self._runtime or runtime_for(args)
        except CaptureError as error:
            self._refusals[key] = self._refused(error)
            return self._uncaptured(args, self._refusals[key])
        self._runtime.fence()
        updates = self.plan.resolve(self._source.lengths(args))
        results = self._runtime.eager(self._split, args, updates)
        self.stats.warmups += 1
        try:
            self._captures[key] = self._capture(args, updates)
        except CaptureError as error:
            self._refusals[key] = self._refused(error)
        finally:
            self._source.commit(args)
        return results

    def _capture(self, args: Sequence[Any], updates: Sequence[Update]) -> Capture:
        assert self._roles is not None and self._runtime is not None
        bound = self._roles.bind(args)
        with _CAPTURING, torch.no_grad():
            graph = self._runtime.capture(self._split, bound, updates)
        self.stats.captures += 1
        return Capture(
            graph=graph,
            bound=bound,
            addresses=self._roles.addresses(args),
            written=[args[i] for i in self._split.mutated],
            outputs=plan_outputs(args, bound, graph.outputs),
        )

    def _drop_moved(self, key: Key, capture: Capture, args: Sequence[Any]) -> None:
        """Drop a capture whose tensors have moved, or say that they have."""
        assert self._roles is not None
        names = [node.name for node in self._gm.graph.nodes if node.op == "placeholder"]
        moved = ", ".join(names[i] for i in self._roles.moved(args, capture.addresses))
        if self.options.on_move == "error":
            raise MovedInputError(
                f"{moved}: not at the address the graph was captured with; write weights and caches in "
                "place, or call reset()"
            )
        logger.info("capturing anew: %s moved", moved)
        capture.graph.reset()
        del self._captures[key]
        self.stats.recaptures += 1
        self._wasted[key] += 1
        if self._wasted[key] >= MAX_WASTED:
            reason = f"{moved}: at another address in every call, so no capture can be replayed"
            self._refusals[key] = self._refused(CaptureError(reason))

    def _refused(self, error: CaptureError) -> str:
        """The reason of a refusal, as a log line, or raised if the options say so."""
        if self.options.on_refusal == "error":
            raise error
        logger.warning("not captured: %s", error)
        return str(error)

    def _full(self) -> str | None:
        if len(self._captures) < self.options.max_graphs:
            return None
        return f"{self.options.max_graphs} shapes are captured already (max_graphs)"

    def _uncaptured(self, args: Sequence[Any], reason: str) -> tuple[Any, ...]:
        self.stats.fallbacks[reason] += 1
        return as_tuple(self._gm(*args))


def _grad_refusal(args: Sequence[Any]) -> str | None:
    if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        return "gradients are wanted; captured graphs have none (use torch.no_grad())"
    return None
