"""int8 from real numbers and back, symmetric: stored = clamp(round(real / scale)), real = stored * scale.

Symmetric because the operator drops offsets where it reads NZ caches (vllm-ascend), and the same scales
should do for every layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

NZ_WIDTH = 32
"""Elements of a row of an NZ tile, for one-byte dtypes."""


def quantise(real: Tensor, scale: Tensor) -> Tensor:
    """int8 of ``real``; rounds half to even, saturates. ``scale`` broadcasts."""
    return (real.to(torch.float32) / scale.to(torch.float32)).round().clamp(-128, 127).to(torch.int8)


def dequantise(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``stored`` as real numbers of ``dtype``; ``scale`` broadcasts."""
    return (stored.to(torch.float32) * scale.to(torch.float32)).to(dtype)


def token_scale(rows: Tensor) -> Tensor:
    """(T,) float32: the scale with which the largest number of a token, (T, N, D), becomes 127."""
    return _positive(rows.abs().amax((1, 2)).to(torch.float32) / 127)


def channel_scale(largest: Tensor) -> Tensor:
    """The scales with which channels whose numbers are at most ``largest`` use all of int8."""
    return _positive(largest.to(torch.float32) / 127)


def _positive(scale: Tensor) -> Tensor:
    """What is always 0 stays 0 with any scale."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def nz_pages(pages: Tensor) -> Tensor:
    """Pages (P, block_size, N, D) of an int8 cache as the operator's NZ form, (P, N, D / 32, block_size, 32).

    The same memory, in another order: what is written as one must not be read as the other.
    """
    count, block_size, heads, dim = pages.shape
    return pages.view(count, heads, dim // NZ_WIDTH, block_size, NZ_WIDTH)


def nz_rows(pages: Tensor, slots: Tensor) -> Tensor:
    """The tokens (T, N, D) in ``slots`` (T,) of NZ pages (P, N, D / 32, block_size, 32)."""
    block_size = pages.shape[3]
    tiles = pages.permute(0, 3, 1, 2, 4)
    return tiles[slots // block_size, slots % block_size].flatten(2)
