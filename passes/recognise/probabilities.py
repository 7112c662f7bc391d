"""From the attention probabilities down to the product with V."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx

from npu_compile.passes.axes import Axes, Axis, Dim, Frame
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.recognise.product import Product, match_product
from npu_compile.passes.recognise.scores import Beside
from npu_compile.passes.recognise.where_from import operator_name
from npu_compile.passes.recognise.zeroed import zeroed_where
from npu_compile.passes.site import MaskTerm
from npu_compile.passes.values import (
    argument,
    aten,
    drops,
    is_call,
    is_float_cast,
    node_input,
    only_user,
    same,
    same_value_input,
    shape,
)


@dataclass(frozen=True)
class Weighted:
    """The product with V: V, its axes and those of the result, and which are summed over."""

    node: fx.Node
    value: fx.Node
    value_frame: Frame
    frame: Frame
    summed: frozenset[Axis]
    zeroed: tuple[Beside, ...] = ()
    """Masks in whose places the probabilities are set to 0 on the way."""


def weighted_by(softmax: fx.Node, axes: Axes, frame: Frame, has_sink: bool = False) -> Weighted:
    """The product with V that the probabilities ``softmax`` go into.

    ``frame`` is that of the probabilities; a sink is their last key, which V must not meet.

    Raises:
        Declined: they go somewhere else, or also somewhere else.
    """
    current = softmax
    zeroed: list[Beside] = []
    while True:
        user = only_user(current)
        if user is None:
            raise Declined("the attention probabilities are used more than once (for example, returned)")
        product = match_product(user)
        if product is not None and current in (product.left, product.right):
            if has_sink:
                raise Declined("the probability of the attention sink is not dropped before V")
            return replace(_weighted(product, current, axes.resolve(frame)), zeroed=tuple(zeroed))
        if is_call(user, aten.dropout, aten.dropout_) and drops(user):
            raise Declined("dropout is active: the fused operator has no dropout")
        moved = axes.after(user, frame)
        if has_sink and _drops_last(user):
            has_sink = False
        elif moved is not None:
            frame = moved
        elif (mask := zeroed_where(user, current)) is not None and not has_sink:
            zeroed.append(Beside(MaskTerm("drop", mask), frame))
        elif not is_float_cast(user) and same_value_input(user) is not current:
            raise Declined(
                f"the attention probabilities are changed by {operator_name(user)} before they meet V"
            )
        current = user


def _weighted(product: Product, probabilities: fx.Node, frame: Frame) -> Weighted:
    if product.scale != 1.0 or product.added is not None or product.left is product.right:
        raise Declined("the product with V is scaled or added to in one call")
    left, right, result = product.letters
    own, theirs, values = (left, right, product.right)
    if product.right is probabilities:
        own, theirs, values = (right, left, product.left)
    named: dict[str, Dim] = dict(zip(own, frame, strict=True))
    for letter, size in zip(theirs, shape(values), strict=True):
        if letter and letter not in named:
            named[letter] = () if same(size, 1) else (Axis(size),)
    named[""] = ()
    summed = frozenset(axis for letter in product.summed for axis in named[letter])
    value_frame, out = (tuple(named.get(letter, ()) for letter in letters) for letters in (theirs, result))
    return Weighted(product.node, values, value_frame, out, summed)


def _drops_last(node: fx.Node) -> bool:
    """probabilities[..., :-1]"""
    if not is_call(node, aten.slice.Tensor) or argument(node, 4, "step", 1) != 1:
        return False
    rank, keys = len(shape(node)), shape(node_input(node))[-1]
    last, start = argument(node, 1, "dim", 0) in (-1, rank - 1), argument(node, 2, "start")
    return last and start in (0, None) and same(shape(node)[-1], keys - 1)
