"""Emits what a mask plan asks for: key lengths, an explicit mask, a bias, and the rows to treat apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import fx

from npu_compile.passes.mask.explicit import Emitted, MaskTensors, open_rows, void
from npu_compile.passes.mask.integers import Integers
from npu_compile.passes.mask.linear import Held, Linear, size
from npu_compile.passes.mask.meaning import MaskAnalyser
from npu_compile.passes.mask.plan import Bound, FromMask, MaskPlan
from npu_compile.passes.mask.run_time import classify, summed
from npu_compile.passes.mask.writer import Writer
from npu_compile.passes.site import ScoreShape
from npu_compile.passes.values import aten, same, shape, value


class MaskEmitter:
    """Emission for one graph; what several layers share is emitted once.

    ``device``: where masks are made that come from no tensor of the program. Each node is inserted
    right after the last one it reads.
    """

    def __init__(self, analyser: MaskAnalyser, device: torch.device | str) -> None:
        self._analyser = analyser
        self._device = torch.device(device)
        self._writer = Writer(analyser.graph, analyser.writes)
        self._integers = Integers(self._writer)
        self._made: dict[object, fx.Node | Emitted] = {}

    def emit_lengths(self, plan: MaskPlan) -> fx.Node | None:
        """int64, (B,) or (1,) for all batch elements: the key lengths; None if all keys count.

        Lengths that only depend on sizes are a CPU tensor.
        """
        if plan.lengths is None:
            return None
        key = ("lengths", plan.lengths, size(plan.scores.query), size(plan.scores.key), self._mask_key(plan))
        return self._once(key, lambda: self._lengths(plan))

    def emit_mask(self, plan: MaskPlan) -> fx.Node | None:
        """bool, (B or 1, 1, Q, K), True where masked out; None unless ``plan.atten_mask`` is "explicit"."""
        if plan.atten_mask != "explicit":
            return None
        return self._once(("mask", self._mask_key(plan)), lambda: self._mask(plan))

    def emit_bias(self, plan: MaskPlan) -> fx.Node | None:
        """float, broadcasts to (B, N, Q, K), no infinities: what is added to the scaled scores, or None."""
        if not plan.meaning.bias:
            return None
        return self._once(("bias", self._mask_key(plan)), lambda: self._bias(plan))

    def expand_bias(self, bias: fx.Node, scores: ScoreShape) -> fx.Node:
        """``bias`` as (B or 1, N, Q, K): the operator does not broadcast it over heads or rows."""
        own = shape(bias)
        batch = scores.batch if len(own) == 4 and not same(own[0], 1) else 1
        sizes = tuple(size(n) for n in (batch, scores.heads, scores.query, scores.key))

        def expanded() -> fx.Node:
            numbers = [self._integers.number(n) for n in sizes]
            return self._writer.call(aten.expand.default, bias, numbers)

        return self._once(("expanded", bias, sizes), expanded)

    def emit_empty_rows(self, plan: MaskPlan) -> fx.Node | None:
        """bool, broadcasts to (B, N, Q, 1): rows in which the caller sets the query to 0, or None."""
        if plan.empty_rows != "mean":
            return None
        if _emits_mask(plan):
            return self._explicit(plan).mean_rows
        return self._once(("mean", plan.lengths), lambda: self._no_keys(plan))

    def emit_void_rows(self, plan: MaskPlan) -> fx.Node | None:
        """bool, broadcasts to (B, N, Q, 1): rows of nothing but minus infinity, or None.

        SDPA gives 0 there, and so does the operator unless ``plan.patch_void_rows``; a hand-written softmax
        gives NaN.
        """
        if _emits_mask(plan):
            return self._explicit(plan).void_rows
        if plan.empty_rows != "zero":
            return None
        return self._once(("void", id(plan.meaning)), lambda: self._no_keys(plan))

    def _mask(self, plan: MaskPlan) -> fx.Node:
        return self._writer.settled(self._tensors(plan).full(self._explicit(plan).masked))

    def _lengths(self, plan: MaskPlan) -> fx.Node:
        call = self._writer.call
        if isinstance(plan.lengths, FromMask):
            return self._tensors(plan).last_kept(self._explicit(plan).masked)
        assert isinstance(plan.lengths, Bound)
        length = self._least(plan.lengths)
        key = self._integers.number(size(plan.scores.key))
        if plan.lengths.clamped:
            length = call(aten.clamp.default, length, 0, key)
        if plan.lengths.full_if_empty:
            length = call(aten.masked_fill.Scalar, length, call(aten.le.Scalar, length, 0), key)
        return self._writer.settled(call(aten.reshape.default, length, [-1]))

    def _least(self, bound: Bound) -> fx.Node:
        held = [atom.node for limit in bound.limits for atom, _ in limit.terms if isinstance(atom, Held)]
        device = value(held[0]).device if held else torch.device("cpu")
        limits = [self._integers.tensor(limit, Linear(1), device) for limit in bound.limits]
        return reduce(lambda a, b: self._writer.call(aten.minimum.default, a, b), limits)

    def _no_keys(self, plan: MaskPlan) -> fx.Node:
        """Rows that bounds on the key leave nothing of."""
        bounds = plan.meaning.keep.key_bounds(size(plan.scores.key))
        assert bounds is not None, "other masks are explicit"
        call, query, prover = self._writer.call, size(plan.scores.query), plan.meaning.prover
        sizes = (plan.scores.batch, plan.scores.heads, plan.scores.query, plan.scores.key)
        spans = [high - low for low in bounds[0] for high in bounds[1]]
        spans = [span for span in spans if not prover.nonnegative(span, sizes)]
        tests = [call(aten.lt.Scalar, self._integers.tensor(span, query, self._device), 0) for span in spans]
        return reduce(lambda a, b: call(aten.logical_or.default, a, b), tests)

    def _explicit(self, plan: MaskPlan) -> Emitted:
        key = ("explicit", self._mask_key(plan))
        if key not in self._made:
            self._made[key] = self._make_explicit(plan)
        made = self._made[key]
        assert isinstance(made, Emitted)
        return made

    def _make_explicit(self, plan: MaskPlan) -> Emitted:
        tensors, meaning = self._tensors(plan), plan.meaning
        if meaning.by_head:
            return classify(self._writer, tensors, meaning.parts, meaning.softmax_dtype, by_head=True)
        parts = [part for part in meaning.parts if not part.per_head]
        if meaning.at_run_time:
            return classify(self._writer, tensors, parts, meaning.softmax_dtype, by_head=False)
        masked = tensors.masked(parts)
        if not meaning.maybe_empty_rows:
            return Emitted(masked)
        empty = void(self._writer, masked)
        if plan.empty_rows == "zero":
            return Emitted(masked, void_rows=empty)
        return Emitted(open_rows(self._writer, masked, empty), mean_rows=empty)

    def _bias(self, plan: MaskPlan) -> fx.Node:
        """The sum of what is added to the scores, 0 in rows that become a mean."""
        bias = self._explicit(plan).bias if plan.meaning.at_run_time or plan.meaning.by_head else None
        heads = [part for part in plan.meaning.parts if part.per_head and not plan.meaning.by_head]
        if heads:
            added = summed(self._writer, self._tensors(plan), heads, plan.meaning.softmax_dtype)
            if (rows := self.emit_empty_rows(plan)) is not None:
                added = self._writer.call(aten.masked_fill.Scalar, added, rows, 0)
            bias = added if bias is None else self._writer.call(aten.add.Tensor, bias, added)
        assert bias is not None
        return self._writer.settled(bias)

    def _tensors(self, plan: MaskPlan) -> MaskTensors:
        return MaskTensors(self._writer, self._integers, plan.scores, self._device)

    def _mask_key(self, plan: MaskPlan) -> object:
        """What tells emitted masks apart: meanings, which the analyser keeps and shares."""
        return (id(plan.meaning), plan.empty_rows) if _emits_mask(plan) or plan.meaning.bias else None

    def _once(self, key: object, make: Callable[[], fx.Node]) -> fx.Node:
        if key not in self._made:
            self._made[key] = make()
        made = self._made[key]
        assert isinstance(made, fx.Node)
        return made


def _emits_mask(plan: MaskPlan) -> bool:
    """Whether the plan rests on a mask that is worked out in the graph."""
    return plan.atten_mask == "explicit" or plan.meaning.by_head
