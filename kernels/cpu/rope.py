"""CPU kernels of rotary embeddings. They compute in float32, float64 on float64 inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from .norms import compute_dtype


def npu_rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """``input * r1 + rotated(input) * r2``; r1 (cos) and r2 (sin) broadcast to ``input``.

    ``half`` pairs element i with i + D / 2, ``interleave`` elements 2i and 2i + 1, each in place; with
    ``rotate`` (D, D) the rotated input is ``input @ rotate`` instead.
    """
    wide = input.to(compute_dtype(input))
    if rotate is not None:
        turned = wide @ rotate.to(wide.dtype)
    elif rotary_mode == "half":
        turned = rotate_half(wide)
    elif rotary_mode == "interleave":
        turned = torch.stack([-wide[..., 1::2], wide[..., ::2]], -1).flatten(-2)
    else:
        raise ValueError(f"rotary_mode: {rotary_mode!r} isn't one of half, interleave")
    return (wide * r1 + turned * r2).to(input.dtype)


def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (2i, 2i + 1) of ``x`` (B, N, S, D) and write them half-split: i and i + D / 2."""
    return deinterleaving_rope(x, cos, sin).to(x.dtype)


def deinterleaving_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """:func:`npu_interleave_rope` before it is rounded to x's dtype."""
    wide = x.to(compute_dtype(x))
    halves = torch.cat([wide[..., ::2], wide[..., 1::2]], -1)
    return halves * cos + rotate_half(halves) * sin


def rotate_half(x: Tensor) -> Tensor:
    """(-second half, first half) along the last dim."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
