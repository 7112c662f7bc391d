"""Merging attention over parts of the keys, row by row."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def merge(lse: list[Tensor], out: list[Tensor]) -> tuple[Tensor, Tensor]:
    """lse[i] (M,), out[i] (M, D): parts marked +inf, NaN, -inf or about -3.4e38 have no keys."""
    rows, dim = out[0].shape
    merged = torch.zeros(rows, dim, dtype=torch.float64)
    total = torch.full((rows,), float("-inf"), dtype=torch.float64)
    for row in range(rows):
        weights = [float(part[row]) for part in lse]
        parts = [(w, o[row].double()) for w, o in zip(weights, out, strict=True) if -1e38 < w < math.inf]
        if not parts:
            continue
        top = max(w for w, _ in parts)
        mass = sum(math.exp(w - top) for w, _ in parts)
        merged[row] = sum(o * (math.exp(w - top) / mass) for w, o in parts)
        total[row] = top + math.log(mass)
    return merged, total


def ring(out: list[Tensor], maximum: list[Tensor], mass: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Two parts as out (M, D), maximum (M,), sum (M,): the torch_npu docs' formulas."""
    top = torch.maximum(maximum[0].double(), maximum[1].double())
    scaled = [m.double() * torch.exp(x.double() - top) for m, x in zip(mass, maximum, strict=True)]
    total = scaled[0] + scaled[1]
    merged = sum(o.double() * (s / total)[:, None] for o, s in zip(out, scaled, strict=True))
    return torch.as_tensor(merged), top, total
