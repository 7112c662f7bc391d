"""The products with W_UK and W_UV that stand around attention over latents. Their batch are the heads."""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.emit import head_weights
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.site import Views
from npu_compile.passes.values import aten, value


def latent_query(graph: fx.Graph, shared: Shared, mla: MlaSite, query: fx.Node) -> fx.Node:
    """(B, N, Q, P) by W_UK: (B, N, Q, L). All requests share one reading of the weights."""
    scores = mla.attention.scores
    weights = head_weights(graph, mla.key_up, scores.heads)
    rows = call(graph, aten.transpose.int, query, 0, 1)
    rows = call(graph, aten.reshape.default, rows, [scores.heads, -1, mla.nope_dim])
    product = call(graph, aten.bmm.default, rows, weights)
    sizes = [scores.heads, shared.number(scores.batch), shared.number(scores.query), mla.latent_dim]
    return call(graph, aten.transpose.int, call(graph, aten.view.default, product, sizes), 0, 1)


def to_values(graph: fx.Graph, shared: Shared, mla: MlaSite, target: Target, fuse: bool) -> Views:
    """The views and the product with W_UV that make (B, N, Q, V) of (N, B, Q, L).

    ``fuse``: npu_transpose_batchmatmul where the target takes it; its result has tokens first, the order
    in which the output projection reads them.
    """
    scores = mla.attention.scores
    weights = head_weights(graph, mla.value_up, scores.heads)
    weights = call(graph, aten.transpose.int, weights, 1, 2)
    batch, tokens, width = shared.number(scores.batch), shared.number(scores.query), mla.value_up.width
    rows = (aten.reshape.default, ([scores.heads, -1, mla.latent_dim],))
    if fuse and _may_fuse(value(weights), target):
        product = (torch.ops.npu.npu_transpose_batchmatmul.default, (weights,))
        sizes = [batch, tokens, scores.heads, width]
        return rows, product, (aten.view.default, (sizes,)), (aten.transpose.int, (1, 2))
    sizes = [scores.heads, batch, tokens, width]
    return rows, (aten.bmm.default, (weights,)), (aten.view.default, (sizes,)), (aten.transpose.int, (0, 1))


def _may_fuse(weights: torch.Tensor, target: Target) -> bool:
    """Whether npu_transpose_batchmatmul takes ``weights`` (N, L, V)."""
    heads, latent, _ = weights.shape
    rows = weights.new_empty(heads, 1, latent)
    return not check("npu_transpose_batchmatmul", {"input": rows, "weight": weights}, target)
