"""Caches as arrays of tokens, written and read one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def at(cache: Tensor, slot: int, heads: int, nz: bool) -> Tensor:
    """Token ``slot`` of a cache as a list of (index, ...) views: (N, D) of Norm caches, copied from NZ ones.

    Norm: (blocks, block_size, N, D). NZ: (blocks, N * D / x, block_size, x), element d of head n being in row
    (n * D + d) // x at column (n * D + d) % x.
    """
    if not nz:
        return cache[slot // cache.shape[1], slot % cache.shape[1]]
    rows, block_size, width = cache.shape[1:]
    flat = [cache[slot // block_size, i // width, slot % block_size, i % width] for i in range(rows * width)]
    return torch.stack(flat).view(heads, -1)


def put(cache: Tensor, slot: int, token: Tensor, nz: bool) -> None:
    """Write a token (N, D)."""
    if not nz:
        cache[slot // cache.shape[1], slot % cache.shape[1]] = token
        return
    block_size, width = cache.shape[2:]
    for i, element in enumerate(token.flatten()):
        cache[slot // block_size, i // width, slot % block_size, i % width] = element


def shape(blocks: int, block_size: int, heads: int, dim: int, nz: bool, width: int) -> tuple[int, ...]:
    if nz:
        return blocks, heads * dim // width, block_size, width
    return blocks, block_size, heads, dim
