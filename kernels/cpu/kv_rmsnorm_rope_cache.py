"""CPU kernel of npu_kv_rmsnorm_rope_cache: norm and rotary embedding of MLA's keys on their way into the
caches."""

from __future__ import annotations

import torch
from torch import Tensor

from .norms import rms
from .quant import to_int8
from .rope import deinterleaving_rope
from .slots import block_slots, require_slots, tokens_of, write

PAGED = ("PA", "PA_BNSD", "PA_NZ")
BLOCKWISE = ("PA_BLK_BNSD", "PA_BLK_NZ")


def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Norm the latent part of ``kv`` (B, 1, S, L + R), rotate its rope part, and write both, in place.

    The rope part is the last R elements; it goes to ``k_cache`` and the latent part to ``ckv_cache``: note
    the order. Norm: caches (B, 1, capacity, R or L), ``index`` (B, S) int64 positions in the request. Paged
    modes: caches (blocks, block_size, 1, R or L) and global slots (B * S,), or the first slot of each block
    (B * ceil(S / block_size),) for PA_BLK_*. The NZ modes use the same shape with memory ordered (blocks, D /
    x, block_size, x). -1 skips a token. An int8 cache needs its scale, which multiplies.

    Returns the caches, the rotated part (B, 1, S, R) and the normed part (B, 1, S, L), both before
    quantisation; the device fills the last two only if ``is_output_kv``. Raises before anything is written.
    """
    if v is not None:
        raise NotImplementedError("v: split keys and values have no CPU reference")
    latent, rope = gamma.shape[0], cos.shape[-1]
    if kv.dim() != 4 or kv.shape[1] != 1 or kv.shape[-1] != latent + rope:
        raise ValueError(f"kv: {tuple(kv.shape)} isn't (B, 1, S, {latent} + {rope})")
    normed = rms(kv[..., :latent], gamma, epsilon)[0]
    rotated = deinterleaving_rope(kv[..., latent:], cos, sin)
    stored = [
        (_stored("k_rope", rotated, k_cache, k_rope_scale, k_rope_offset), k_cache),
        (_stored("c_kv", normed, ckv_cache, c_kv_scale, c_kv_offset), ckv_cache),
    ]
    if k_cache.shape[:-1] != ckv_cache.shape[:-1]:
        raise ValueError(
            f"ckv_cache: {tuple(ckv_cache.shape)} doesn't go with k_cache {tuple(k_cache.shape)}"
        )
    slots = _slots(index, kv, k_cache, cache_mode)
    targets = [(rows.flatten(0, 2), _tokens(cache, cache_mode)) for rows, cache in stored]
    for rows, tokens in targets:
        write(rows, tokens, slots)
    return k_cache, ckv_cache, rotated.to(kv.dtype), normed.to(kv.dtype)


def _stored(name: str, rows: Tensor, cache: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    """``rows`` in the cache's dtype."""
    if cache.dim() != 4 or cache.shape[-1] != rows.shape[-1]:
        raise ValueError(f"{name}: a cache of {tuple(cache.shape)} for rows of {rows.shape[-1]}")
    if cache.dtype != torch.int8:
        return rows.to(cache.dtype)
    if scale is None:
        raise ValueError(f"{name}_scale: an int8 cache needs it, got None")
    return to_int8(rows, scale, offset)


def _tokens(cache: Tensor, cache_mode: str) -> Tensor:
    """The cache as (blocks, block_size, ...), in the order of its memory; one block per request for Norm."""
    return cache[:, 0] if cache_mode == "Norm" else tokens_of(cache, cache_mode)


def _slots(index: Tensor, kv: Tensor, cache: Tensor, cache_mode: str) -> Tensor:
    """The slot of each of the B * S tokens, -1 for those that aren't written."""
    batch, _, tokens, _ = kv.shape
    if cache_mode == "Norm":
        capacity = cache.shape[2]
        if tuple(index.shape) != (batch, tokens) or cache.shape[0] < batch:
            raise ValueError(
                f"index: {tuple(index.shape)} isn't {(batch, tokens)}, caches {tuple(cache.shape)}"
            )
        positions = [require_slots("index", row, capacity, tokens, skipping=True) for row in index]
        return torch.cat([torch.where(p < 0, p, p + b * capacity) for b, p in enumerate(positions)])
    blocks, block_size = cache.shape[:2]
    if cache_mode in PAGED:
        return require_slots("index", index, blocks * block_size, batch * tokens, skipping=True)
    if cache_mode not in BLOCKWISE:
        raise ValueError(f"cache_mode: {cache_mode!r} isn't one of Norm, {', '.join(PAGED + BLOCKWISE)}")
    needed = batch * -(-tokens // block_size)
    starts = require_slots("index", index, blocks * block_size, needed, skipping=True)
    return block_slots(starts, [tokens] * batch, block_size)
