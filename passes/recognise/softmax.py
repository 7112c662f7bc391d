"""recognise: attention written by hand, softmax(scale * q @ k^T + mask) @ v.

Start at a softmax over the last axis. Above it, follow scales, masks, casts and reshapes up
to the product of two activations; below it, casts and dead dropout down to the product with
V. Each step is judged by what it does to the values, and no value on the way may have
another reader, who would then still need it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compile.passes.recognise.assemble import Declined, Parts, batched, operand_shape, unbatched
from npu_compile.passes.recognise.attention_like import why_not_read
from npu_compile.passes.recognise.probabilities import weighted_by
from npu_compile.passes.recognise.product import Product
from npu_compile.passes.recognise.scores import Scores, scores_of
from npu_compile.passes.site import Operand, Views
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    node_input,
    same,
    seen_through,
    shape,
    swapped_dims,
    value,
    viewed,
)

_SOFTMAXES = (aten.softmax.int, aten._softmax, aten._safe_softmax, aten.special_softmax)


def is_softmax(node: fx.Node) -> bool:
    return is_call(node, *_SOFTMAXES, aten.log_softmax)


def match_softmax(node: fx.Node) -> Parts:
    """The parts of the attention around a softmax.

    Raises:
        Declined: it can't be fused, or it is no attention at all (see :mod:`attention_like`).
    """
    if not is_call(node, *_SOFTMAXES):
        raise Declined("the product with V takes the logarithms of probabilities")
    if argument(node, 1, "dim") not in (-1, len(shape(node)) - 1):
        raise Declined("the softmax is not over the last axis of the scores")
    scores = scores_of(node.args[0], node)
    if scores is None:
        raise Declined(why_not_read(node))
    if scores.obstacle is not None:
        raise Declined(scores.obstacle)
    weighted = weighted_by(node, has_sink=scores.sink is not None)
    if not _agrees(scores, weighted):
        raise Declined("the axes of the scores are used in another order than batch, heads, queries, keys")
    heads = scores.wide[:2] if scores.wide is not None else None
    rank = 4 if heads is not None else len(operand_shape(scores.product.lhs))
    query, key, values = (
        _heads_apart(read, heads) for read in (scores.product.lhs, scores.product.rhs, weighted.rhs)
    )
    for factor in scores.tensor_scales:
        query = viewed(query, aten.mul.Tensor, factor)
    query, key, values = _precision_of_values(query, _last_two_swapped(key), values)
    return Parts(
        form="softmax",
        output=weighted.node,
        output_views=unbatched(rank) + _flat_again(weighted.node, rank) + weighted.output_views,
        query=batched(query),
        key=batched(key),
        value=batched(values),
        scale=scores.scale,
        masks=scores.masks,
        sink=None if scores.sink is None else batched(scores.sink),
        softmax_dtype=scores.mask_dtype or value(node).dtype,
        autocast=_autocast(scores.product) or _autocast(weighted),
    )


def _autocast(product: Product) -> torch.dtype | None:
    """The dtype that a product has under autocast where its operands have another one."""
    dtype = value(product.node).dtype
    return dtype if value(product.rhs.node).dtype != dtype else None


def _agrees(scores: Scores, weighted: Product) -> bool:
    """Whether the products with K and V agree on which axis is which; only einsums can differ.

    Where both swap the same two axes and nothing happens in between, the swap makes no difference.
    """
    swaps = scores.product.output_views
    if not swaps:
        return not weighted.lhs.views
    plain = not scores.masks and not scores.tensor_scales
    (target, dims), *more = swaps
    keys = len(shape(scores.product.node)) - 1
    return (
        plain
        and not more
        and target is aten.transpose.int
        and keys not in dims
        and weighted.lhs.views == swaps
    )


def _heads_apart(read: Operand, heads: tuple[Any, ...] | None) -> Operand:
    """A (B*N, S, D) operand as (B, N, S, D), by undoing the reshape that merged it where there is one."""
    full = operand_shape(read)
    if heads is None or len(full) != 3:
        return read
    batch, count = heads
    if not same(full[0], batch * count):
        return viewed(read, aten.unsqueeze.default, 0)
    if is_call(read.node, aten.view, aten.reshape, aten._unsafe_view) and not read.views:
        apart = node_input(read.node)
        before = shape(apart)
        if len(before) == 4 and all(map(same, before, (batch, count, *full[1:]))):
            return seen_through(Operand(apart, read.read_at))
    return viewed(read, aten.reshape.default, [batch, count, *full[1:]])


def _flat_again(output: fx.Node, rank: int) -> Views:
    """The view from a (B, N, Q, D_v) result back to the program's (B*N, Q, D_v)."""
    own = shape(output)
    return ((aten.reshape.default, (list(own),)),) if len(own) == 3 and rank == 4 else ()


def _last_two_swapped(read: Operand) -> Operand:
    """K from K^T, by undoing the transpose where there is one."""
    if not read.views:
        node = read.node
        rank = len(shape(node))
        if is_call(node, aten.transpose.int) and swapped_dims(node) == {rank - 2, rank - 1}:
            return seen_through(Operand(node_input(node), read.read_at))
        if is_call(node, aten.mT, aten.t, aten.adjoint, aten.matrix_H):
            return seen_through(Operand(node_input(node), read.read_at))
        dims = argument(node, 1, "dims") if is_call(node, aten.permute.default) else ()
        if [d % rank for d in dims] == [0, 2, 3, 1]:
            before = seen_through(Operand(node_input(node), read.read_at))
            return viewed(before, aten.transpose.int, 1, 2)
    elif read.views[-1] == (aten.transpose.int, (2, 3)):
        return Operand(read.node, read.read_at, read.views[:-1])
    return viewed(read, aten.transpose.int, -2, -1)


def _precision_of_values(query: Operand, key: Operand, values: Operand) -> tuple[Operand, Operand, Operand]:
    """Drop casts of q and k to float32 that only serve the product: the operator accumulates in float32."""
    wanted = value(values.node).dtype

    def uncast(read: Operand) -> Operand:
        node = read.node
        if value(node).dtype == wanted or read.views or not is_call(node, aten.to, aten._to_copy):
            return read
        source = node_input(node)
        return seen_through(Operand(source, node)) if value(source).dtype == wanted else read

    return uncast(query), uncast(key), values
