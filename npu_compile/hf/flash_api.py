"""The calls of FlashAttention on FIA, for code that makes them: variable lengths, and a paged cache.

Signatures are flash-attn's (2.x and 3), as far as FIA can follow them. FlashAttention aligns causality at
the bottom right, as sparse_mode 3 does; its cumulative lengths have a leading 0, FIA's don't.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.causal_mask import causal_mask
from ..serving.cache_writes import slots_of, write_kv
from .fia import attend, host, packs
from .kv_views import PackedKV, PagedKV
from .packed import attend_packed, attend_paged
from .rows import Rows


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
    **unsupported: Any,
) -> Tensor:
    """(T, N, Dv) for q (T, N, D), k (Tk, N_kv, D), v (Tk, N_kv, Dv); ``cu_seqlens_*`` (B + 1) begin with 0.

    Raises ValueError for what FIA has not: dropout, a soft cap, a window of a call that isn't causal.
    """
    _require(dropout_p=dropout_p, softcap=softcap, **unsupported)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    queries, keys = _without_zero("cu_seqlens_q", cu_seqlens_q), _without_zero("cu_seqlens_k", cu_seqlens_k)
    view = PackedKV(queries, keys, _window(window_size, causal))
    if causal:
        return attend_packed(q, k, v, view, scale, s_aux, causal_mask(q.device))
    arguments: dict[str, Any] = {"num_heads": q.shape[1], "num_key_value_heads": k.shape[1], "scale": scale}
    if packs(q, v.shape[-1], q.shape[1], k.shape[1]):
        lengths: dict[str, Any] = {"actual_seq_lengths": host(queries), "actual_seq_lengths_kv": host(keys)}
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return attend(q, k, v, s_aux, input_layout="TND", **arguments, **lengths)
    rows, tokens = Rows.of(queries), Rows.of(keys)
    lengths = {"actual_seq_lengths": rows.lengths, "actual_seq_lengths_kv": tokens.lengths}
    q, k, v = rows.batch(q), tokens.batch(k), tokens.batch(v)
    return rows.packed(attend(q, k, v, s_aux, input_layout="BSND", **arguments, **lengths))


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
    **unsupported: Any,
) -> Tensor:
    """(B, Sq, N, D) for q (B, Sq, N, D) over paged caches (blocks, block_size, N_kv, D).

    ``page_table`` (B, columns) is int32. ``cache_seqlens`` (B,) counts the tokens in the cache; where new
    ones, ``k`` and ``v`` (B, Sq, N_kv, D), are given, those before them, behind which they are written.
    Raises ValueError as :func:`flash_attn_varlen_func`, and without a table and lengths, for windows, and for
    several query tokens that aren't causal.
    """
    _require(softcap=softcap, **unsupported)
    if page_table is None or cache_seqlens is None:
        raise ValueError("page_table, cache_seqlens: both are needed: the cache is paged")
    if window_size != (-1, -1):
        raise ValueError(f"window_size={window_size}: a window can't be read from a paged cache")
    batch, q_len = q.shape[:2]
    if q_len > 1 and not causal:
        raise ValueError(f"causal=False: with {q_len} query tokens per request it has to be True")
    lengths = cache_seqlens
    if k is not None and v is not None:
        positions = cache_seqlens[:, None] + torch.arange(q_len, device=cache_seqlens.device)
        table = page_table.repeat_interleave(q_len, 0)
        slots = slots_of(table, positions.flatten().to(table.device), k_cache.shape[1])
        write_kv(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots)
        lengths = cache_seqlens + q_len
    ends = torch.arange(1, batch + 1) * q_len
    view = PagedKV(k_cache, v_cache, page_table, ends, lengths, q_len == 1)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out = attend_paged(q.flatten(0, 1), view, scale, s_aux, causal_mask(q.device))
    return out.view(batch, q_len, *out.shape[1:])


def _require(**values: Any) -> None:
    """Raise ValueError for an argument that isn't at the value that leaves it without effect."""
    for name, value in values.items():
        if isinstance(value, Tensor) or value not in (None, 0, False):
            raise ValueError(f"{name}={value!r}: FIA can't follow it")


def _without_zero(name: str, cumulative: Tensor) -> Tensor:
    if cumulative.dim() != 1 or int(cumulative[0]) != 0:
        raise ValueError(f"{name}: cumulative lengths of FlashAttention begin with 0, got {cumulative}")
    return cumulative[1:]


def _window(window: tuple[int, int], causal: bool) -> int | None:
    """How many keys a query sees, itself included; FlashAttention counts those to its left."""
    left, right = window
    if left < 0 and (right < 0 or (causal and right == 0)):
        return None
    if not causal or left < 0:
        raise ValueError(f"window_size={window} with causal={causal}: only causal windows (left, 0) can be")
    return left + 1
