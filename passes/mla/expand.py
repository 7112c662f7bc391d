"""Keys and values of some latents, as the program expands them."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.mla.site import HeadRows, MlaSite
from npu_compile.passes.values import aten, shape


def expanded(graph: fx.Graph, mla: MlaSite, latent: fx.Node, rope: fx.Node) -> tuple[fx.Node, fx.Node]:
    """(B, N, C, P + R) keys and (B, N, C, V) values of ``latent`` (B, 1, C, L) and ``rope`` (B, 1, C, R)."""
    heads = mla.attention.scores.heads
    tokens = call(graph, aten.squeeze.dim, latent, 1)
    keys = values = call(graph, aten.linear.default, tokens, mla.key_up.weight)
    if mla.value_up.weight is not mla.key_up.weight:
        values = call(graph, aten.linear.default, tokens, mla.value_up.weight)
    shared = call(graph, aten.expand.default, rope, [-1, heads, -1, -1])
    parts = [_of_heads(graph, keys, mla.key_up, heads), shared]
    return call(graph, aten.cat.default, parts, -1), _of_heads(graph, values, mla.value_up, heads)


def _of_heads(graph: fx.Graph, projected: fx.Node, rows: HeadRows, heads: int) -> fx.Node:
    """(B, N, C, width) of a projection's (B, C, rows)."""
    first, inner = rows.in_shares(heads, shape(projected)[-1])
    own = call(graph, aten.slice.Tensor, projected, -1, first, first + heads * rows.stride)
    per_head = call(graph, aten.unflatten.int, own, -1, [heads, rows.stride])
    per_head = call(graph, aten.slice.Tensor, per_head, -1, inner, inner + rows.width)
    return call(graph, aten.transpose.int, per_head, 1, 2)
