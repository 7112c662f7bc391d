"""CPU kernels of npu_mla_prolog_v3: from hidden states to absorbed queries and cached keys of MLA.

    c_q = qc_qr_scale * rmsnorm(x @ weight_dq)
    [q_nope | q_rope] per head = c_q @ weight_uq_qr;  query = q_nope @ weight_uk;  query_rope = rope(q_rope)
    [c | k_rope] = x @ weight_dkv_kr;  kv_cache <- kc_scale * rmsnorm(c);  kr_cache <- rope(k_rope)

Rotary embedding takes pairs (2i, 2i + 1) and writes them half-split, as npu_interleave_rope does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from .norms import compute_dtype, rms
from .quant import to_int8
from .rope import deinterleaving_rope
from .slots import require_slots, tokens_of, write

CACHE_MODES = ("PA_BSND", "PA_NZ")


@dataclass(frozen=True, slots=True)
class Quantised:
    """``stored`` int8 rows and the scale of each, float32 (..., 1)."""

    stored: Tensor
    scale: Tensor


def npu_mla_prolog_v3(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    cache_index: Tensor | None = None,
    dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None,
    dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None,
    quant_scale_ckv: Tensor | None = None,
    quant_scale_ckr: Tensor | None = None,
    smooth_scales_cq: Tensor | None = None,
    actual_seq_len: Tensor | None = None,
    k_nope_clip_alpha: Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
    ckvkr_repo_mode: int = 0,
    quant_scale_repo_mode: int = 0,
    tile_size: int = 128,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
    token_x_dtype: int | None = None,
    weight_dq_dtype: int | None = None,
    weight_uq_qr_dtype: int | None = None,
    weight_dkv_kr_dtype: int | None = None,
    kv_cache_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query (..., N, Hckv), its rope part (..., N, Dr), its scale, the normed latent query and its scale;
    what isn't asked for has shape (0,). ``...`` is (T,) or (B, S). The caches are written in place.

    ``weight_quant_mode`` 0 floats, 1 int8 ``weight_uq_qr``, 2 int8 tokens and weights.
    ``kv_cache_quant_mode`` 0 none, 1 per tensor, 2 per channel, 3 per token and tile (latent part, rope part
    and float32 scales in one row). Float outputs have the dtype of float tokens, bfloat16 for int8 ones.
    8-bit floats and ``k_nope_clip_alpha`` have no CPU reference; ``actual_seq_len`` is reserved and not read
    (torch_npu docs). Raises before anything is written.
    """
    if weight_quant_mode not in (0, 1, 2):
        raise NotImplementedError(f"weight_quant_mode: {weight_quant_mode} has no CPU reference, 0 to 2 have")
    if k_nope_clip_alpha is not None:
        raise NotImplementedError("k_nope_clip_alpha: what it does isn't documented")
    _require_scales(kv_cache_quant_mode, quant_scale_ckv, quant_scale_ckr)
    quantised_caches = (kv_cache.dtype == torch.int8, kr_cache.dtype == torch.int8)
    if quantised_caches[0] != (kv_cache_quant_mode > 0) or quantised_caches[1] != (kv_cache_quant_mode == 2):
        dtypes = f"{kv_cache.dtype} and {kr_cache.dtype}"
        raise TypeError(f"kv_cache, kr_cache: {dtypes} with kv_cache_quant_mode {kv_cache_quant_mode}")
    lead = token_x.shape[:-1]
    heads, _, latent = weight_uk.shape
    rope_dim = rope_sin.shape[-1]
    wide = compute_dtype(token_x)
    dtype = token_x.dtype if token_x.is_floating_point() else torch.bfloat16
    x = token_x.reshape(-1, token_x.shape[-1]).to(wide)
    cos, sin = (t.reshape(-1, rope_dim).to(wide) for t in (rope_cos, rope_sin))
    if dequant_scale_x is not None:
        x = x * dequant_scale_x

    c_q = rms(x @ _real(weight_dq, dequant_scale_w_dq, wide), rmsnorm_gamma_cq, rmsnorm_epsilon_cq)[0]
    c_q = c_q * qc_qr_scale
    norm = _dynamic(c_q, smooth_scales_cq) if weight_quant_mode else None
    latent_query = c_q if norm is None else norm.stored.to(wide) * norm.scale
    per_head = latent_query @ _real(weight_uq_qr, dequant_scale_w_uq_qr, wide)
    per_head = per_head.unflatten(-1, (heads, -1))
    query = torch.einsum("tnd,ndl->tnl", per_head[..., :-rope_dim], weight_uk.to(wide))
    query_rope = deinterleaving_rope(per_head[..., -rope_dim:], cos.unsqueeze(1), sin.unsqueeze(1))

    keys = x @ _real(weight_dkv_kr, dequant_scale_w_dkv_kr, wide)
    c_kv = rms(keys[:, :latent], rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)[0] * kc_scale
    k_rope = deinterleaving_rope(keys[:, latent:], cos, sin)

    query_scale = query.new_empty(0, dtype=torch.float32)
    if kv_cache_quant_mode == 1 and weight_quant_mode == 2 and quant_scale_ckv is not None:
        quantised = _dynamic(query, None)
        query_scale = quantised.scale
        # The scores are multiplied by the scales of query and keys, so its rope part is divided by them.
        query_rope = query_rope * quant_scale_ckv / query_scale
        query = quantised.stored
    rows = _rows(
        c_kv, k_rope, kv_cache, kr_cache, kv_cache_quant_mode, quant_scale_ckv, quant_scale_ckr, tile_size
    )
    _store(rows, (kv_cache, kr_cache)[: len(rows)], cache_index, cache_mode)

    query_norm, norm_scale = weight_uq_qr.new_empty(0), query.new_empty(0, dtype=torch.float32)
    if query_norm_flag and norm is None:
        query_norm = c_q.to(weight_uq_qr.dtype).reshape(*lead, c_q.shape[-1])
    elif query_norm_flag and norm is not None:
        query_norm, norm_scale = norm.stored.reshape(*lead, c_q.shape[-1]), norm.scale
    return (
        (query if query.dtype == torch.int8 else query.to(dtype)).reshape(*lead, heads, latent),
        query_rope.to(dtype).reshape(*lead, heads, rope_dim),
        query_scale,
        query_norm,
        norm_scale,
    )


@wraps(npu_mla_prolog_v3, assigned=())
def npu_mla_prolog_v3_functional(*args: Any, **options: Any) -> tuple[Tensor, ...]:
    """:func:`npu_mla_prolog_v3` on copies of the caches, which come last in its results."""
    call = signature(npu_mla_prolog_v3).bind(*args, **options).arguments
    for name in ("kv_cache", "kr_cache"):
        call[name] = call[name].clone()
    return *npu_mla_prolog_v3(**call), call["kv_cache"], call["kr_cache"]


def _require_scales(mode: int, ckv: Tensor | None, ckr: Tensor | None) -> None:
    if mode not in (0, 1, 2, 3):
        raise ValueError(f"kv_cache_quant_mode: {mode} isn't one of 0 to 3")
    if mode in (1, 2) and ckv is None:
        raise ValueError(f"quant_scale_ckv: kv_cache_quant_mode {mode} needs it, got None")
    if mode == 1 and ckv is not None and ckv.numel() != 1:
        raise ValueError(f"quant_scale_ckv: kv_cache_quant_mode 1 takes one number, got {tuple(ckv.shape)}")
    if mode == 2 and ckr is None:
        raise ValueError("quant_scale_ckr: kv_cache_quant_mode 2 needs it, got None")


def _real(weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A weight (in, out), int8 ones by their scale per output channel (1, out)."""
    if weight.is_floating_point():
        return weight.to(dtype)
    if scale is None:
        raise ValueError("dequant_scale_w_*: an int8 weight needs its scale, got None")
    return weight.to(dtype) * scale


def _dynamic(rows: Tensor, smooth: Tensor | None) -> Quantised:
    """int8 rows scaled so that the largest magnitude of each is 127."""
    rows = rows if smooth is None else rows * smooth
    scale = (rows.abs().amax(-1, keepdim=True) / 127).to(torch.float32)
    safe = scale.masked_fill(scale == 0, 1.0)
    return Quantised((rows / safe).round().clamp(-128, 127).to(torch.int8), scale)


def _rows(
    c_kv: Tensor,
    k_rope: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    mode: int,
    scale_ckv: Tensor | None,
    scale_ckr: Tensor | None,
    tile_size: int,
) -> tuple[Tensor, ...]:
    """What is stored for each token in the latent cache, and in the rope cache unless it is in the same
    row."""
    if mode == 0:
        return c_kv.to(kv_cache.dtype), k_rope.to(kr_cache.dtype)
    if mode == 1 and scale_ckv is not None:
        return to_int8(c_kv, scale_ckv, None), k_rope.to(kr_cache.dtype)
    if mode == 2 and scale_ckv is not None and scale_ckr is not None:
        return to_int8(c_kv, scale_ckv, None), to_int8(k_rope, scale_ckr, None)
    tiles = _dynamic(c_kv.unflatten(-1, (-1, tile_size)), None)
    scales = tiles.scale.squeeze(-1).contiguous()
    parts = [tiles.stored.flatten(-2), k_rope.to(torch.bfloat16).view(torch.int8), scales.view(torch.int8)]
    return (torch.cat(parts, -1),)


def _store(
    rows: tuple[Tensor, ...], caches: tuple[Tensor, ...], index: Tensor | None, cache_mode: str
) -> None:
    """Write what belongs to each token to its slot; nothing if the caches are empty (torch_npu docs)."""
    if cache_mode not in CACHE_MODES:
        raise ValueError(f"cache_mode: {cache_mode!r} isn't one of {', '.join(CACHE_MODES)}")
    if index is None:
        raise ValueError("cache_index: it says where tokens are stored, got None")
    blocks, block_size = caches[0].shape[:2]
    if blocks * block_size == 0:
        return
    for row, cache in zip(rows, caches, strict=True):
        wanted = (blocks, block_size, 1, row.shape[1])
        if tuple(cache.shape) != wanted:
            raise ValueError(f"kv_cache, kr_cache: {tuple(cache.shape)} where {wanted} is needed")
    slots = require_slots("cache_index", index, blocks * block_size, rows[0].shape[0])
    views = [tokens_of(cache, cache_mode) for cache in caches]
    for row, view in zip(rows, views, strict=True):
        write(row, view, slots)
