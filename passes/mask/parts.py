"""Mask terms taken apart: what each contributes to the predicate, and what stays a bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import fx

from npu_compile.passes.mask.formula import Compare, Formula, dims, negation, substitute
from npu_compile.passes.mask.interpret import Interpreter
from npu_compile.passes.mask.linear import Dim, Linear
from npu_compile.passes.mask.moderate import is_moderate
from npu_compile.passes.mask.values import Choice, Sum, Unknown, Value, as_choice, as_truth
from npu_compile.passes.site import MaskTerm, ScoreShape
from npu_compile.passes.values import aten, is_call, is_tensor, same, shape
from npu_compile.passes.values import value as value_of

INF = float("inf")


class MaskNotExpressible(ValueError):
    """The fused operator can't be told this mask; the message is a reason for the user."""


@dataclass(frozen=True)
class Part:
    """A mask term, or one addend of it.

    ``keep`` is where it leaves a score as it is, and ``fills`` what it makes of the others; both are empty
    (None) for a float whose values aren't known. ``axes``: the score dimensions it depends on (-4: batch,
    ..., -1: key), where ``keep`` is known. ``per_head``: it differs between heads. ``batch_first``: the
    node is (B, Q, K) and lacks the head dimension.
    """

    kind: Literal["keep", "drop", "add", "causal"]
    node: fx.Node | None
    keep: Formula | None
    fills: tuple[float, ...] = ()
    fill: float = -INF
    axes: frozenset[int] = frozenset()
    per_head: bool = False
    batch_first: bool = False

    @property
    def masks(self) -> bool:
        """Whether it may drop scores; position biases don't."""
        if self.keep is None:
            return self.node is not None and not is_moderate(self.node)
        return bool(self.fills)


class Splitter:
    """Splits mask terms of one site."""

    def __init__(
        self, interpreter: Interpreter, scores: ScoreShape, softmax_dtype: torch.dtype, alone: bool
    ) -> None:
        """``alone``: the site has one mask term."""
        self._interpreter = interpreter
        self._scores = scores
        self._dtype = softmax_dtype
        self._alone = alone

    def split(self, term: MaskTerm) -> Iterator[Part]:
        """Parts in program order.

        Raises:
            MaskNotExpressible: masked scores become a number that still takes part in the softmax.
        """
        if term.kind == "causal":
            causal = Compare(Linear.of(Dim(-2)) - Linear.of(Dim(-1)))
            yield Part("causal", None, causal, (-INF,), axes=frozenset((-1, -2)))
            return
        if term.node is None or not is_tensor(term.node):
            raise MaskNotExpressible(f"the mask of kind {term.kind!r} is not a tensor")
        if term.kind == "add":
            yield from self._addends(term.node)
            return
        if not self._removes(term.fill):
            raise MaskNotExpressible(
                f"masked scores become {term.fill:g}, which is not minus infinity or the smallest "
                f"{_name(self._dtype)}: they can still take part in the softmax"
            )
        yield self._filled(term.kind, term.node, term.fill)

    def _removes(self, fill: float) -> bool:
        return removes(fill, self._dtype) or is_smallest(fill, self._dtype)

    def _filled(self, kind: Literal["keep", "drop"], node: fx.Node, fill: float) -> Part:
        try:
            formula = self._in_scores(as_truth(self._interpreter.value(node)), node)
        except Unknown:
            raise MaskNotExpressible(f"the mask {node.name} is not bool") from None
        kept = formula if kind == "keep" else negation(formula)
        return self._part(Part(kind, node, kept, (fill,), fill, frozenset(dims(kept))))

    def _addends(self, node: fx.Node) -> Iterator[Part]:
        value = self._interpreter.value(node)
        if isinstance(value, Sum) and value.nodes != (node,):
            for addend in value.nodes:
                yield from self._addends(addend)
        elif self._alone and isinstance(value, Sum) and (found := self._masked_bias(node)) is not None:
            bias, kind, mask, fill = found
            yield from self._addends(bias)
            yield self._filled(kind, mask, fill)
        else:
            yield self._part(self._addend(node, value))

    def _masked_bias(self, node: fx.Node) -> tuple[fx.Node, Literal["keep", "drop"], fx.Node, float] | None:
        """The bias, the mask and the fill value of a bias with masked places, or None."""
        args: Any = node.args
        kind: Literal["keep", "drop"] = "drop"
        if is_call(node, aten.masked_fill):
            bias, mask, fill = args[0], args[1], args[2]
        elif is_call(node, aten.where.self, aten.where.ScalarOther):
            mask, bias, fill, kind = args[0], args[1], args[2], "keep"
        elif is_call(node, aten.where.ScalarSelf):
            mask, fill, bias = args[0], args[1], args[2]
        else:
            return None
        try:
            number = as_choice(self._interpreter.read(fill, node), value_of(node).dtype).number
            as_truth(self._interpreter.read(mask, node))
            self._interpreter.read(bias, node)
        except Unknown:
            return None
        return (bias, kind, mask, number) if number is not None and removes(number, self._dtype) else None

    def _addend(self, node: fx.Node, value: Value) -> Part:
        if isinstance(value, Choice):
            fills = tuple(number for number, _ in value.cases if number != 0)
            if all(map(self._removes, fills)):
                kept = self._in_scores(value.where(lambda number: number == 0), node)
                cases = [self._in_scores(where, node) for _, where in value.cases]
                return Part("add", node, kept, fills, axes=frozenset().union(*map(dims, cases)))
        return Part("add", node, None)

    def _part(self, part: Part) -> Part:
        assert part.node is not None
        sizes = shape(part.node)
        if len(sizes) > 4:
            raise MaskNotExpressible(f"the mask {part.node.name} has {len(sizes)} dimensions")
        lacks_heads = self._lacks_heads(part.node)
        unknown = part.keep is None and len(sizes) >= 3 and not lacks_heads and not same(sizes[-3], 1)
        return replace(part, per_head=unknown or -3 in part.axes, batch_first=lacks_heads)

    def _lacks_heads(self, node: fx.Node) -> bool:
        return len(shape(node)) == 3 and same(self._scores.heads, 1)

    def _in_scores(self, formula: Formula, node: fx.Node) -> Formula:
        """A formula over the node's dimensions as one over the scores' (B, N, Q, K)."""
        return substitute(formula, {-3: Linear.of(Dim(-4))}) if self._lacks_heads(node) else formula


def removes(number: float, dtype: torch.dtype) -> bool:
    """Whether a score that becomes this, or gets it added, has no part in the softmax.

    True for -inf and for numbers so large that adding any score of magnitude below 2**20 leaves them
    as they are: their exponential is 0 next to any other score, and a row of nothing else is uniform.
    """
    if number == -INF:
        return True
    precision = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    absorbs = -number * precision / 4 > 2**20
    return absorbs or (dtype == torch.float16 and number == torch.finfo(dtype).min)


def is_smallest(number: float, dtype: torch.dtype) -> bool:
    """Whether it is the minimum of a float type no wider than ``dtype``: masks spell minus infinity so.

    float16's -65504 removes a score from a row that keeps another one, but does not make the scores of
    an otherwise empty float32 row uniform.
    """
    narrower = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return any(number == torch.finfo(t).min for t in narrower if t.itemsize <= dtype.itemsize)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
