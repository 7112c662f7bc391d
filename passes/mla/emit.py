"""Small pieces of graph that the forms of MLA share."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import through
from npu_compile.passes.mla.site import HeadRows, MlaSite
from npu_compile.passes.site import Operand
from npu_compile.passes.values import aten, shape


def emit(graph: fx.Graph, read: Operand) -> fx.Node:
    """The operand with its views, at the insertion point."""
    return through(graph, read.node, read.views)


def queries(graph: fx.Graph, mla: MlaSite, mean_rows: fx.Node | None) -> tuple[fx.Node, fx.Node]:
    """(B, N, Q, P) and (B, N, Q, R), zero in ``mean_rows``, in which the operator then averages V."""
    parts = [emit(graph, mla.query_nope), emit(graph, mla.query_rope)]
    if mean_rows is not None:
        parts = [call(graph, aten.masked_fill.Scalar, part, mean_rows, 0) for part in parts]
    return parts[0], parts[1]


def head_weights(graph: fx.Graph, rows: HeadRows, heads: int) -> fx.Node:
    """(N, width, L): a view of the projection's weight."""
    total, latent = shape(rows.weight)
    first, inner = rows.in_shares(heads, total)
    weight = call(graph, aten.slice.Tensor, rows.weight, 0, first, first + heads * rows.stride)
    shares = call(graph, aten.reshape.default, weight, [heads, rows.stride, latent])
    return call(graph, aten.slice.Tensor, shares, 1, inner, inner + rows.width)
