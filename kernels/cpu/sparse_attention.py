"""CPU kernels of sparse flash attention (SFA): each query token attends to the keys that an indexer chose.

The operators know one attention mode, absorbed MLA: queries and keys are a latent part (512) and a rope part
(64), values are the keys' latent part, and there is one K/V head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .attend import attend
from .sparse import SparseLayout
from .tokens import Joined, Tokens, join
from .views import as_bnsd, from_bnsd

CHUNK = 1 << 22
"""Elements of chosen keys that are gathered at once."""

Unpack = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Chosen tokens as stored (..., C) to keys (..., D) and values (..., Dv)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """``sparse_indices``: index b chooses tokens b * block to (b + 1) * block - 1 of the request; -1 chooses
    none. ``causal`` adds j <= Lkv - Lq + i."""

    block: int
    causal: bool

    def positions(self, indices: Tensor, first_row: int, q_len: int, kv_len: int) -> tuple[Tensor, Tensor]:
        """Positions (rows, count * block) of the chosen tokens and whether each counts; those that don't are
        0."""
        inner = torch.arange(self.block, device=indices.device)
        blocks = indices.to(torch.int64).unsqueeze(-1)
        positions = blocks * self.block + inner
        valid = (blocks >= 0) & (positions < kv_len)
        if self.causal:
            rows = torch.arange(indices.shape[0], device=indices.device)[:, None, None] + first_row
            valid = valid & (positions <= kv_len - q_len + rows)
        return positions.masked_fill(~valid, 0).flatten(1), valid.flatten(1)


def npu_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output like ``query`` (B, S, N, D) or (T, N, D), and if ``return_softmax_lse`` maximum and sum of the
    softmax, float32 (B, 1, S, N) or (1, T, N).

    ``sparse_indices`` (B, S, 1, count) or (T, 1, count) int32, valid ones first. ``value`` is the key's data
    or None. Maximum and sum aren't available with PA_BSND keys or ``sinks`` (N,).
    """
    if return_softmax_lse and (layout_kv == "PA_BSND" or sinks is not None):
        raise ValueError("return_softmax_lse: it isn't available with PA_BSND keys or sinks")
    if query_rope is None or key_rope is None:
        raise ValueError("query_rope, key_rope: attention is absorbed MLA, which needs both")
    layout = SparseLayout(layout_query, layout_kv, block_table)
    tokens: Tokens = Joined(layout.tokens(key), layout.tokens(key_rope))
    latent, width = key.shape[-1], key.shape[-1] + key_rope.shape[-1]
    if value is not None:
        tokens = Joined(tokens, layout.tokens(value))

    def unpack(chosen: Tensor) -> tuple[Tensor, Tensor]:
        if value is not None and not torch.equal(chosen[..., :latent], chosen[..., width:]):
            raise ValueError("value: it isn't the key's data, as in absorbed MLA it is")
        return chosen[..., :width], chosen[..., :latent]

    lengths = layout.sequences(actual_seq_lengths_query, actual_seq_lengths_kv, "kv")
    view = as_bnsd(join(query, query_rope), layout.query, query.shape[-2])
    requests = [r for r in layout.requests(view, key, *lengths) if r.q_len]
    choice = _choice(sparse_block_size, sparse_mode)
    batch, heads, q_len, _ = view.shape
    out = query.new_zeros(batch, heads, q_len, latent)
    statistics = torch.zeros(2, batch, heads, q_len, dtype=torch.float32, device=query.device)
    index_view = as_bnsd(sparse_indices, layout.query, 1)
    for request in requests:
        q, indices = request.query.of(view)[0], request.query.of(index_view)[0, 0]
        keys = tokens.read(request)[0, 0]
        part, lse, maximum = _attend(q, keys, indices, unpack, choice, scale_value, return_softmax_lse)
        if sinks is not None:
            part = part * torch.sigmoid(lse - sinks.to(lse.dtype)[:, None]).unsqueeze(-1)
        request.query.of(out)[0] = part
        if maximum is not None:
            total = torch.exp(lse - maximum).masked_fill(lse == float("-inf"), 0.0)
            span = request.query
            statistics[:, span.first, :, span.start : span.stop] = torch.stack([maximum, total])
    result = from_bnsd(out, layout.query)
    if not return_softmax_lse:
        empty = statistics.new_empty(0)
        return result, empty, empty.clone()
    ordered = statistics.transpose(2, 3)  # (2, B, S, N)
    maximum, total = (t.unsqueeze(1) if layout.query == "BSND" else t for t in ordered.contiguous())
    return result, maximum, total


def npu_kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: Tensor | None = None,
    value_dequant_scale: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths_query: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = 3,
    pre_tokens: int = 9223372036854775807,
    next_tokens: int = 9223372036854775807,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = 1,
    tile_size: int = 128,
    rope_head_dim: int = 64,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
) -> Tensor:
    """Output (B, S, N, L) or (T, N, L) for packed 8-bit keys.

    ``query`` has latent and rope part joined (L + R). A key's row holds L bytes of latent part, R rope
    elements in query's dtype and a float32 scale for each ``tile_size`` elements of the latent part: 656
    bytes for L 512, R 64. ``value`` is the same data and isn't read. Both quantisation modes are 2.
    """
    if key_quant_mode != 2 or value_quant_mode != 2 or quant_scale_repo_mode != 1:
        modes = (key_quant_mode, value_quant_mode, quant_scale_repo_mode)
        raise ValueError(f"key_quant_mode, value_quant_mode, quant_scale_repo_mode: {modes} aren't (2, 2, 1)")
    latent = query.shape[-1] - rope_head_dim
    rope_bytes = rope_head_dim * query.element_size()
    needed = latent + rope_bytes + latent // tile_size * 4
    if key.element_size() != 1 or key.shape[-1] != needed:
        raise ValueError(f"key: rows of {key.shape[-1]} {key.dtype} aren't {needed} bytes")
    layout = SparseLayout(layout_query, layout_kv, block_table)
    tokens = layout.tokens(key)

    def unpack(chosen: Tensor) -> tuple[Tensor, Tensor]:
        stored, rope, scales = chosen.split([latent, rope_bytes, needed - latent - rope_bytes], -1)
        tiles = stored.to(torch.float32).unflatten(-1, (-1, tile_size))
        real = (tiles * scales.contiguous().view(torch.float32).unsqueeze(-1)).flatten(-2)
        return join(real, rope.contiguous().view(query.dtype)), real

    view = as_bnsd(query, layout.query, query.shape[-2])
    lengths = layout.sequences(actual_seq_lengths_query, actual_seq_lengths_kv, "kv")
    choice = _choice(sparse_block_size, sparse_mode)
    out = query.new_zeros(*view.shape[:-1], latent)
    index_view = as_bnsd(sparse_indices, layout.query, 1)
    for request in (r for r in layout.requests(view, key, *lengths) if r.q_len):
        q, indices = request.query.of(view)[0], request.query.of(index_view)[0, 0]
        request.query.of(out)[0] = _attend(
            q, tokens.read(request)[0, 0], indices, unpack, choice, scale_value
        )[0]
    return from_bnsd(out, layout.query)


def _choice(block: int, sparse_mode: int) -> Selection:
    if sparse_mode not in (0, 3):
        raise ValueError(f"sparse_mode: {sparse_mode} isn't 0 or 3")
    return Selection(block, sparse_mode == 3)


def _attend(
    q: Tensor,
    tokens: Tensor,
    indices: Tensor,
    unpack: Unpack,
    choice: Selection,
    scale: float,
    want_maximum: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Attention of one request: output (N, Lq, Dv), log-sum-exp and, on demand, maximum of the scores (N,
    Lq).

    q (N, Lq, D) with Lq > 0, tokens (Lkv, C) as stored, indices (Lq, count). Only chosen tokens are read.
    """
    q_len = q.shape[1]
    kv_len, width = tokens.shape
    rows = max(1, CHUNK // max(1, indices.shape[1] * choice.block * width))
    outs, maxima, lses = [], [], []
    for first in range(0, q_len, rows):
        positions, valid = choice.positions(indices[first : first + rows], first, q_len, kv_len)
        chosen = tokens[positions] if kv_len else tokens.new_zeros(*positions.shape, width)
        chosen = chosen.masked_fill(~valid.unsqueeze(-1), 0)
        key, value = unpack(chosen)
        each = q[:, first : first + rows].transpose(0, 1).unsqueeze(2)  # (rows, N, 1, D): a request per token
        hidden = ~valid[:, None, None]
        out, lse = attend(each, key.unsqueeze(1), value.unsqueeze(1), scale, hidden=hidden)
        outs.append(out[:, :, 0])
        lses.append(lse[:, :, 0])
        if want_maximum:
            scores = (each.squeeze(2).to(lse.dtype) @ key.to(lse.dtype).mT) * scale
            maxima.append(scores.masked_fill(hidden.squeeze(1), float("-inf")).amax(-1))
    out, lse = (torch.cat(parts).transpose(0, 1) for parts in (outs, lses))
    return out, lse, torch.cat(maxima).transpose(0, 1) if want_maximum else None
