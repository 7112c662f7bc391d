"""From the attention probabilities down to the product with V."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.recognise.product import Product, match_product
from npu_compile.passes.values import (
    argument,
    aten,
    drops,
    is_call,
    node_input,
    only_user,
    same,
    same_value_input,
    shape,
    value,
)


def weighted_by(node: fx.Node, has_sink: bool = False) -> Product:
    """The product with V that the probabilities ``node`` go into; without their last key if that is a sink.

    Raises:
        Declined: they go somewhere else, or also somewhere else.
    """
    current = node
    while True:
        user = only_user(current)
        if user is None:
            raise Declined("the attention probabilities are used more than once (for example, returned)")
        product = match_product(user)
        if product is not None and user.args and _reads_as_lhs(product, current):
            if has_sink:
                raise Declined("the probability of the attention sink is not dropped before V")
            if product.scale != 1.0 or product.added is not None:
                raise Declined("the product with V is scaled or added to in one call")
            return product
        if is_call(user, aten.dropout, aten.dropout_) and drops(user):
            raise Declined("dropout is active: the fused operator has no dropout")
        if has_sink and _drops_last(user):
            has_sink, current = False, user
            continue
        casts = is_call(user, aten.to, aten._to_copy) and value(user).dtype.is_floating_point
        if not casts and same_value_input(user) is not current and not _regroups(user):
            raise Declined(f"the attention probabilities are changed by {user.name} before they meet V")
        current = user


def _drops_last(node: fx.Node) -> bool:
    """probabilities[..., :-1]"""
    if not is_call(node, aten.slice.Tensor) or argument(node, 4, "step", 1) != 1:
        return False
    rank, keys = len(shape(node)), shape(node_input(node))[-1]
    last, start = argument(node, 1, "dim", 0) in (-1, rank - 1), argument(node, 2, "start")
    return last and start in (0, None) and same(shape(node)[-1], keys - 1)


def _reads_as_lhs(product: Product, probabilities: fx.Node) -> bool:
    if is_call(product.node, aten.einsum.default):
        return argument(product.node, 1, "tensors")[0] is probabilities
    return product.node.args[0] is probabilities


def _regroups(node: fx.Node) -> bool:
    """A reshape between (B, N, Q, K) and (B*N, Q, K)."""
    if not is_call(node, aten.view, aten.reshape, aten._unsafe_view):
        return False
    before, after = shape(node_input(node)), shape(node)
    return len(after) >= 3 and same(before[-1], after[-1]) and same(before[-2], after[-2])
