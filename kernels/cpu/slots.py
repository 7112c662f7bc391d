"""Token slots of paged caches: slot = block * block_size + position in the block."""

from __future__ import annotations

import torch
from torch import Tensor


def require_slots(name: str, slots: Tensor, limit: int, count: int, skipping: bool = False) -> Tensor:
    """``slots`` as int64 (count,), checked: in 0 to ``limit`` - 1 and no slot twice.

    With ``skipping`` -1 is allowed too and means that the token isn't written. Raises TypeError or
    ValueError, so that a caller that checks before it writes leaves the cache alone.
    """
    if slots.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: slots are int32 or int64, got {slots.dtype}")
    slots = slots.to(torch.int64).flatten()
    if slots.numel() != count:
        raise ValueError(f"{name}: {slots.numel()} slots where {count} are needed")
    lowest = -1 if skipping else 0
    wrong = slots[(slots < lowest) | (slots >= limit)]
    if wrong.numel():
        raise ValueError(f"{name}: slot {int(wrong[0])} isn't in {lowest}..{limit - 1}")
    used = slots[slots >= 0]
    if torch.unique(used).numel() != used.numel():
        raise ValueError(f"{name}: a slot is there twice in {slots.tolist()}")
    return slots


def block_slots(first_slots: Tensor, lengths: list[int], block_size: int) -> Tensor:
    """The slot of each token of requests of ``lengths`` tokens, whose blocks start at ``first_slots``: for
    each request ceil(length / block_size) of them. A start of -1 skips the block's tokens."""
    slots, block = [], 0
    for length in lengths:
        token = torch.arange(length, device=first_slots.device)
        starts = first_slots[block + token // block_size]
        slots.append(torch.where(starts < 0, starts, starts + token % block_size))
        block += -(-length // block_size)
    return torch.cat(slots) if slots else first_slots.new_empty(0)


def write(rows: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write ``rows`` (T, ...) to ``slots`` of ``cache`` (blocks, block_size, ...), in place; skips slots of
    -1."""
    kept = slots >= 0
    slots, rows = slots[kept], rows[kept]
    block_size = cache.shape[1]
    cache[slots // block_size, slots % block_size] = rows.reshape(rows.shape[0], *cache.shape[2:])


def nz_tokens(cache: Tensor, heads: int) -> Tensor:
    """An NZ cache (blocks, N * D / x, block_size, x) as a (blocks, block_size, N, D / x, x) view to write
    to."""
    blocks, groups, block_size, width = cache.shape
    return cache.view(blocks, heads, groups // heads, block_size, width).permute(0, 3, 1, 2, 4)


def tokens_of(cache: Tensor, cache_mode: str) -> Tensor:
    """A cache of shape (blocks, block_size, 1, D) as (blocks, block_size, ...) in the order of its memory.

    The NZ modes keep this shape over memory that is ordered (blocks, D / x, block_size, x), x being 32 bytes.
    """
    if not cache_mode.endswith("NZ"):
        return cache
    blocks, block_size, heads, dim = cache.shape
    width = 32 // cache.element_size()
    if dim % width:
        raise ValueError(f"cache_mode: {cache_mode} needs a multiple of {width} elements, got {dim}")
    return nz_tokens(cache.view(blocks, heads * dim // width, block_size, width), heads)
