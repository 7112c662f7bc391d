"""CPU kernels of the lightning indexers: which keys a query token is to attend to.

score(i, j) = sum over heads h of weights(i, h) * relu(q(i, h) . k(j)); the best ``sparse_count`` keys of each
query token, best first, then -1. ``sparse_mode`` 3 lets token i see keys j <= Lkv - Lq + i, 0 all keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .norms import compute_dtype
from .quant import Dequantised
from .sparse import SparseLayout
from .tokens import Tokens
from .views import as_bnsd

CHUNK = 1 << 22
"""Scores of all heads that are held at once."""


def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    return_value: bool = False,
) -> tuple[Tensor, Tensor]:
    """Indices int32 (B, S, 1, count) or (T, 1, count), and their scores in query's dtype if ``return_value``.

    ``query`` (B, S, N, D) or (T, N, D); ``key`` with one head; ``weights`` (B, S, N) or (T, N).
    """
    layout = SparseLayout(layout_query, layout_key, block_table)
    keys = layout.tokens(key)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    indices, values = _select(layout, query, keys, key, weights, lengths, sparse_count, sparse_mode)
    return indices, values.to(query.dtype) if return_value else query.new_empty(0)


def npu_quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_key: Tensor | None = None,
    block_table: Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
) -> Tensor:
    """Indices int32 as of :func:`npu_lightning_indexer`, for 8-bit queries and keys.

    Scales are per token and head: ``query_dequant_scale`` (B, S, N) or (T, N), ``key_dequant_scale`` the
    key's shape without D. Both quantisation modes are 0.
    """
    if query_quant_mode != 0 or key_quant_mode != 0:
        raise ValueError(
            f"query_quant_mode {query_quant_mode}, key_quant_mode {key_quant_mode}: only 0 is known"
        )
    layout = SparseLayout(layout_query, layout_key, block_table)
    real_query = query.to(torch.float32) * query_dequant_scale.to(torch.float32).unsqueeze(-1)
    keys = Dequantised(layout.tokens(key), layout.tokens(key_dequant_scale), None)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    return _select(layout, real_query, keys, key, weights, lengths, sparse_count, sparse_mode)[0]


def _select(
    layout: SparseLayout,
    query: Tensor,
    keys: Tokens,
    key: Tensor,
    weights: Tensor,
    lengths: tuple[Tensor | None, Tensor | None],
    sparse_count: int,
    sparse_mode: int,
) -> tuple[Tensor, Tensor]:
    if sparse_mode not in (0, 3):
        raise ValueError(f"sparse_mode: {sparse_mode} isn't 0 or 3")
    if sparse_count <= 0:
        raise ValueError(f"sparse_count: {sparse_count} isn't positive")
    view = as_bnsd(query, layout.query, query.shape[-2])
    weight_view = as_bnsd(weights.unsqueeze(-1), layout.query, weights.shape[-1])
    shape = (*query.shape[:-2], 1, sparse_count)
    indices = torch.full(shape, -1, dtype=torch.int32, device=query.device)
    values = torch.full(shape, float("-inf"), dtype=compute_dtype(query), device=query.device)
    index_view, value_view = (as_bnsd(t, layout.query, 1) for t in (indices, values))
    for request in layout.requests(view, key, *layout.sequences(*lengths, "key")):
        q, w, k = request.query.of(view)[0], request.query.of(weight_view)[0], keys.read(request)[0, 0]
        best, which = _best(q, k, w, sparse_count, sparse_mode)
        request.query.of(index_view)[0, 0, :, : which.shape[1]] = which
        request.query.of(value_view)[0, 0, :, : which.shape[1]] = best
    return indices, values


def _best(q: Tensor, k: Tensor, weights: Tensor, count: int, sparse_mode: int) -> tuple[Tensor, Tensor]:
    """Scores and indices (Lq, min(count, Lkv)) of one request; q (N, Lq, D), k (Lkv, D), weights (N, Lq,
    1)."""
    heads, q_len, _ = q.shape
    kv_len = k.shape[0]
    k = k.to(compute_dtype(q))
    kept = min(count, kv_len)
    best = k.new_full((q_len, kept), float("-inf"))
    which = torch.full((q_len, kept), -1, dtype=torch.int32, device=q.device)
    rows = max(1, CHUNK // max(1, heads * kv_len))
    for first in range(0, q_len if kept else 0, rows):
        part = slice(first, first + rows)
        products = torch.relu(q[:, part].to(k.dtype) @ k.t())
        scores = (products * weights[:, part].to(k.dtype)).sum(0)
        if sparse_mode == 3:
            scores = scores.masked_fill(_future(scores, kv_len - q_len + first), float("-inf"))
        best[part], top = scores.topk(kept, dim=-1)
        which[part] = top.to(torch.int32).masked_fill(best[part] == float("-inf"), -1)
    return best, which


def _future(scores: Tensor, offset: int) -> Tensor:
    """True where column j > row i + ``offset``."""
    return torch.ones_like(scores, dtype=torch.bool).triu(offset + 1)
