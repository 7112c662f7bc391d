"""Writing keys and values into the slots of a paged cache, for engines that mark tokens to skip by -1."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import AscendFiaError


def slots_of(block_table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """(T,) int64 slots, block * block_size + offset, of one token per row of ``block_table`` (T, columns).

    A position of -1, or a block of -1, gives slot -1: nothing is written.
    """
    columns = (positions.clamp(min=0) // block_size).to(torch.int64)
    blocks = block_table.gather(1, columns[:, None]).squeeze(1).to(torch.int64)
    slots = blocks * block_size + positions % block_size
    return torch.where((positions < 0) | (blocks < 0), torch.full_like(slots, -1), slots)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write ``key`` (T, N_kv, D) and ``value`` to the ``slots`` (T,) of caches (blocks, block_size, N_kv, D).

    Tokens with slot -1 are dropped before the operator, whose documents don't know them. Raises
    AscendFiaError for another slot outside the cache, or one named twice.
    """
    key, value, slots = _kept(key, value, key_cache, slots)
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slots, cache_mode="Norm")


def write_kv_functional(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`write_kv` on copies of the caches, which it returns."""
    key, value, slots = _kept(key, value, key_cache, slots)
    return torch.ops.npu.npu_scatter_pa_kv_cache_functional(
        key, value, key_cache, value_cache, slots, cache_mode="Norm"
    )


def _kept(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if slots.shape != key.shape[:1] or slots.shape != value.shape[:1]:
        shapes = f"key {tuple(key.shape)} and value {tuple(value.shape)}"
        raise AscendFiaError("slots", slots, f"there is one slot for each token of {shapes}")
    kept = slots != -1
    slots = slots[kept]
    limit = cache.shape[0] * cache.shape[1]
    wrong = slots[(slots < 0) | (slots >= limit)]
    if wrong.numel():
        raise AscendFiaError("slots", int(wrong[0]), f"the cache has slots 0 to {limit - 1}")
    unique, counts = slots.unique(return_counts=True)
    if unique.numel() != slots.numel():
        raise AscendFiaError("slots", int(unique[counts > 1][0]), "two tokens can't be written to one slot")
    return key[kept].contiguous(), value[kept].contiguous(), slots
