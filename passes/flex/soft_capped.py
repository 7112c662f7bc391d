"""Soft-capped attention as products and a softmax, which are recognised as any program's own.

Operators and dtypes are those of torch's own computation of ``flex_attention``: float32 scores for half
precision, and 0 in rows that keep no key. So the program stays as exact where it isn't lowered.
"""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.values import aten, same, shape, value


def soft_capped(
    graph: fx.Graph,
    query: fx.Node,
    key: fx.Node,
    value_: fx.Node,
    mask: fx.Node,
    scale: float,
    softcap: float,
) -> tuple[fx.Node, ...]:
    """The softmax, and the attention, of softcap * tanh(scale * query @ key^T / softcap), masked.

    ``mask`` broadcasts to the scores: bool, True is kept, or added to the capped scores.
    """
    dtype = value(query).dtype
    working = torch.promote_types(dtype, torch.float32)
    rows, keys = (call(graph, aten.to.dtype, one, working) for one in (query, _repeated(graph, key, query)))
    scores = call(graph, aten.matmul.default, rows, call(graph, aten.transpose.int, keys, 2, 3))
    scores = call(graph, aten.mul.Tensor, scores, scale / softcap)
    scores = call(graph, aten.mul.Tensor, call(graph, aten.tanh.default, scores), softcap)
    if value(mask).dtype == torch.bool:
        scores = call(graph, aten.where.ScalarOther, mask, scores, float("-inf"))
    else:
        scores = call(graph, aten.add.Tensor, scores, mask)
    weights = call(graph, aten._safe_softmax.default, scores, -1)
    rounded = call(graph, aten.to.dtype, weights, dtype)
    return weights, call(graph, aten.matmul.default, rounded, _repeated(graph, value_, query))


def _repeated(graph: fx.Graph, shared: fx.Node, query: fx.Node) -> fx.Node:
    """K or V with the batch and the heads of the query; heads are numbers: flex_attention fixes them."""
    (batch, heads), (own_batch, own_heads) = (shape(one)[:2] for one in (query, shared))
    if not same(batch, own_batch):
        shared = call(graph, aten.expand.default, shared, [batch, -1, -1, -1])
    if same(heads, own_heads):
        return shared
    return call(graph, aten.repeat_interleave.self_int, shared, int(heads) // int(own_heads), 1)
