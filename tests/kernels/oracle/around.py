"""Norms, rotary embeddings and MLA's projections, vector by vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Norm over gamma's dims; also 1 / rms, flat."""
    rows = x.double().reshape(-1, gamma.numel())
    weights = gamma.double().flatten()
    normed, inverse = [], []
    for row in rows:
        rms = math.sqrt(sum(float(e) ** 2 for e in row) / row.numel() + epsilon)
        normed.append(row / rms * weights)
        inverse.append(1 / rms)
    empty = torch.zeros(0, gamma.numel(), dtype=torch.float64)
    return (torch.stack(normed) if normed else empty).reshape(x.shape), torch.tensor(inverse).double()


Pairs = list[tuple[int, int]]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, pairs: Pairs, places: Pairs) -> Tensor:
    """Rotate the elements ``pairs`` of the last dim by an angle each and write them to ``places``.

    cos and sin broadcast to x and are read at the places.
    """
    cos, sin = cos.double().expand(x.shape), sin.double().expand(x.shape)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for (a, b), (to_a, to_b) in zip(pairs, places, strict=True):
        first, second = x[..., a].double(), x[..., b].double()
        out[..., to_a] = first * cos[..., to_a] - second * sin[..., to_a]
        out[..., to_b] = second * cos[..., to_b] + first * sin[..., to_b]
    return out


def half_pairs(dim: int) -> Pairs:
    return [(i, i + dim // 2) for i in range(dim // 2)]


def neighbours(dim: int) -> Pairs:
    return [(2 * i, 2 * i + 1) for i in range(dim // 2)]


def deinterleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring elements rotated and written half-split."""
    dim = x.shape[-1]
    return rotate(x, cos, sin, neighbours(dim), half_pairs(dim))
