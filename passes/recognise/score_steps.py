"""What can happen to scores between q @ k^T and the softmax, one operator at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from npu_compile.passes.axes import is_reshape, permutation_of
from npu_compile.passes.constant import constant, is_symbolic
from npu_compile.passes.recognise.row_maximum import row_maximum
from npu_compile.passes.site import MaskTerm, Views
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    is_float_cast,
    is_tensor,
    node_input,
    same,
    same_shape,
    same_value_input,
    shape,
    value,
)

_BROADCAST = "the scores are broadcast to a larger shape"
_UNKNOWN_FILL = "masked scores get a value that is not known when compiling"


@dataclass(frozen=True)
class Step:
    """``node`` is made of ``scores`` by a scale, a mask, a view, or something that can't be fused.

    ``moves``: by a reshape or a permutation. ``scale``: a node for a tensor, and for a symbolic number, by
    which ``divides`` may divide. ``floor``: scores below this number become it. ``caps``: by tanh.
    ``sink``: (..., 1), a logit that joins each row as its last key. ``beside``: nodes that read it for this
    step alone.
    """

    scores: fx.Node
    moves: bool = False
    scale: float | fx.Node = 1.0
    divides: bool = False
    mask: MaskTerm | None = None
    floor: float | None = None
    caps: bool = False
    sink: fx.Node | None = None
    beside: tuple[fx.Node, ...] = ()
    obstacle: str | None = None


def steps_to(node: fx.Node) -> Iterator[Step]:
    """The ways to read ``node`` as something done to scores: two for a sum, either side may be the scores."""
    if (source := same_value_input(node)) is not None:
        yield Step(source)
    elif is_float_cast(node):
        yield Step(node_input(node))
    elif is_reshape(node) or permutation_of(node) is not None:
        yield Step(node_input(node), moves=True)
    else:
        for targets, steps in _RULES:
            if is_call(node, *targets):
                yield from steps(node)
                return


def _scaled(node: fx.Node) -> Iterator[Step]:
    divides = is_call(node, aten.div, aten.div_)
    left, right = node.args[:2]
    pairs = [(left, right)] if divides else [(left, right), (right, left)]
    for scores, factor in pairs:
        if not is_tensor(scores) or (divides and node.kwargs.get("rounding_mode")):
            continue
        if is_symbolic(factor) and same_shape(shape(scores), shape(node)):
            yield Step(scores, scale=factor, divides=divides)
            continue
        number = constant(factor)
        if not same_shape(shape(scores), shape(node)):
            yield Step(scores, obstacle=_BROADCAST)
        elif number is not None and not (divides and number == 0):
            yield Step(scores, scale=1 / number if divides else number)
        elif is_tensor(factor):
            yield _tensor_scaled(scores, factor, divides)


def _tensor_scaled(scores: fx.Node, factor: fx.Node, divides: bool) -> Step:
    per_row = len(shape(factor)) == 0 or (
        shape(factor)[-1] == 1 and value(factor).dtype == value(scores).dtype
    )
    if divides or not per_row:
        return Step(scores, obstacle="the scores are multiplied or divided by a tensor")
    return Step(scores, scale=factor)


def _added(node: fx.Node) -> Iterator[Step]:
    left, right = node.args[:2]
    if argument(node, 2, "alpha", 1) != 1:
        return
    for scores, mask in ((left, right), (right, left)):
        if not is_tensor(scores) or not same_shape(shape(scores), shape(node)):
            continue
        if isinstance(mask, (int, float)):
            yield Step(scores, obstacle=None if mask == 0 else "a number is added to the scores")
        elif is_tensor(mask):
            yield Step(scores, mask=MaskTerm("add", mask, views=_as_float(mask, node)))


def _as_float(mask: fx.Node, total: fx.Node) -> Views:
    """A mask of bools or integers counts as numbers."""
    if value(mask).dtype.is_floating_point:
        return ()
    return ((aten.to.dtype, (value(total).dtype,)),)


def _subtracted(node: fx.Node) -> Iterator[Step]:
    scores, other = node.args[:2]
    if not is_tensor(scores):
        return
    alpha = argument(node, 2, "alpha", 1)
    readers = row_maximum(scores, other, node) if alpha == 1 else None
    if readers is not None:
        yield Step(scores, beside=readers)
    elif not same_shape(shape(scores), shape(node)):
        yield Step(scores, obstacle=_BROADCAST)
    elif is_tensor(other) and isinstance(alpha, (int, float)):
        yield Step(
            scores, mask=MaskTerm("add", other, views=(*_as_float(other, node), (aten.mul.Tensor, (-alpha,))))
        )
    elif other != 0:
        yield Step(scores, obstacle="a number is subtracted from the scores")


def _joined(node: fx.Node) -> Iterator[Step]:
    """cat([scores, sink]) along the keys."""
    tensors, dim = argument(node, 0, "tensors"), argument(node, 1, "dim", 0)
    if dim in (-1, len(shape(node)) - 1) and len(tensors) == 2 and all(map(is_tensor, tensors)):
        scores, sink = tensors
        if same(shape(sink)[-1], 1):
            yield Step(scores, sink=sink)
        else:
            yield Step(scores, obstacle="the scores are put beside other scores")


def _filled(node: fx.Node) -> Iterator[Step]:
    scores, mask = node_input(node), node_input(node, 1)
    number = constant(argument(node, 2, "value"))
    if not same_shape(shape(scores), shape(node)):
        yield Step(scores, obstacle=_BROADCAST)
    elif number is None:
        yield Step(scores, obstacle=_UNKNOWN_FILL)
    else:
        yield Step(scores, mask=MaskTerm("drop", mask, number))


def _selected(node: fx.Node) -> Iterator[Step]:
    condition, kept, other = node_input(node), *node.args[1:3]
    readings: tuple[tuple[Literal["keep", "drop"], Any, Any], ...] = (
        ("keep", kept, other),
        ("drop", other, kept),
    )
    for kind, scores, fill in readings:
        if not is_tensor(scores):
            continue
        if not same_shape(shape(scores), shape(node)):
            yield Step(scores, obstacle=_BROADCAST)
        elif (number := constant(fill)) is None:
            yield Step(scores, obstacle=_UNKNOWN_FILL)
        else:
            yield Step(scores, mask=MaskTerm(kind, condition, number))


def _bounded(node: fx.Node) -> Iterator[Step]:
    """maximum(scores, finfo.min): what was masked with -inf is masked with the smallest number after it."""
    for scores, bound in ((node.args[0], node.args[1]), (node.args[1], node.args[0])):
        if is_tensor(scores):
            number = constant(bound)
            if not same_shape(shape(scores), shape(node)):
                yield Step(scores, obstacle=_BROADCAST)
            elif number is not None and number <= torch.finfo(value(node).dtype).min:
                yield Step(scores, floor=number)
            else:
                yield Step(scores, obstacle="the scores are clamped")


def _capped(node: fx.Node) -> Iterator[Step]:
    yield Step(node_input(node), caps=True)


def _obstructed(reason: str) -> Callable[[fx.Node], Iterator[Step]]:
    def steps(node: fx.Node) -> Iterator[Step]:
        if is_tensor(node.args[0]):
            yield Step(node.args[0], obstacle=reason)

    return steps


_RULES: tuple[tuple[tuple[Any, ...], Callable[[fx.Node], Iterator[Step]]], ...] = (
    ((aten.mul, aten.mul_, aten.div, aten.div_), _scaled),
    ((aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar), _added),
    ((aten.sub, aten.sub_), _subtracted),
    ((aten.masked_fill, aten.masked_fill_), _filled),
    ((aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf), _selected),
    ((aten.maximum.default, aten.max.other), _bounded),
    ((aten.cat.default,), _joined),
    ((aten.tanh, aten.tanh_), _capped),
    ((aten.clamp, aten.clamp_min, aten.clamp_max), _obstructed("the scores are clamped")),
    (
        (aten.relu, aten.sigmoid, aten.exp, aten.pow),
        _obstructed("the scores go through a non-linear function"),
    ),
)
