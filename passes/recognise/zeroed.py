"""Probabilities of masked keys set to 0 after the softmax, where they are 0 already but for empty rows."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.axes import Axes
from npu_compile.passes.constant import constant, number_in, written_down
from npu_compile.passes.recognise.scores import Beside
from npu_compile.passes.site import MaskTerm
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    node_input,
    same_value_input,
    shape,
    value,
    written_through,
)

_DEEPEST = 8


def zeroed_where(node: fx.Node, probabilities: fx.Node) -> fx.Node | None:
    """The mask of ``probabilities.masked_fill(mask, 0)``; None for other operators."""
    if not is_call(node, aten.masked_fill, aten.masked_fill_) or node.args[0] is not probabilities:
        return None
    if constant(argument(node, 2, "value")) != 0:
        return None
    mask = node_input(node, 1)
    return mask if len(shape(mask)) <= len(shape(node)) else None


def is_mask_of(zeroed: Beside, masks: tuple[Beside, ...], axes: Axes) -> bool:
    """Whether what is set to 0 is what one of ``masks`` has dropped from the scores."""
    return any(
        isinstance(mask.what, MaskTerm)
        and mask.what.kind == "drop"
        and axes.resolve(mask.frame) == axes.resolve(zeroed.frame)
        and same_computation(mask.what.node, zeroed.what.node)
        for mask in masks
    )


def same_computation(a: Any, b: Any, depth: int = _DEEPEST) -> bool:
    """Whether two arguments are equal: the same values, or pure operators of equal arguments."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_computation(x, y, depth) for x, y in zip(a, b, strict=True))
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node):
        return type(a) is type(b) and bool(a == b)
    if written_through(a) or written_through(b):
        return False
    if (source := same_value_input(a)) is not None:
        return same_computation(source, b, depth)
    if (source := same_value_input(b)) is not None:
        return same_computation(a, source, depth)
    if a is b or (a.op == b.op == "get_attr" and _same_constant(a, b)):
        return True
    pure = isinstance(a.target, OpOverload) and not a.target._schema.is_mutable and not a.is_impure()
    if depth == 0 or a.op != "call_function" or a.target is not b.target or not pure or a.kwargs != b.kwargs:
        return False
    return same_computation(a.args, b.args, depth - 1)


def _same_constant(a: fx.Node, b: fx.Node) -> bool:
    """Whether both are the one number that the program wrote down."""
    number = number_in(written_down(a))
    return number is not None and number == number_in(written_down(b)) and value(a).dtype == value(b).dtype
