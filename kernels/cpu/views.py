"""Tensors of any layout, viewed in one common order: (B, N, S, D), a packed layout as (1, N, T, D)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import LAYOUTS, Layout


def layout_of(input_layout: str) -> Layout:
    """The layout of that name. Raises ValueError for a name FIA doesn't know."""
    try:
        return LAYOUTS[input_layout]
    except KeyError:
        raise ValueError(f"input_layout: {input_layout!r} isn't one of {', '.join(LAYOUTS)}") from None


def as_bnsd(tensor: Tensor, layout: str, heads: int) -> Tensor:
    """``tensor`` in ``layout``, viewed as (B, N, S, D); never copies."""
    if layout == "BNSD":
        return tensor
    if layout == "BSH":
        return tensor.unflatten(-1, (heads, tensor.shape[-1] // heads)).transpose(1, 2)
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "NBSD":
        return tensor.transpose(0, 1)
    if layout == "TND":
        return tensor.transpose(0, 1).unsqueeze(0)
    return tensor.unsqueeze(0)  # NTD, NSD


def from_bnsd(tensor: Tensor, layout: str) -> Tensor:
    """A (B, N, S, D) tensor laid out as ``layout``; contiguous, as the operators return it."""
    if layout == "BSH":
        return tensor.transpose(1, 2).contiguous().flatten(2)
    if layout == "BSND":
        return tensor.transpose(1, 2).contiguous()
    if layout == "NBSD":
        return tensor.transpose(0, 1).contiguous()
    if layout == "TND":
        return tensor.squeeze(0).transpose(0, 1).contiguous()
    if layout in ("NTD", "NSD"):
        return tensor.squeeze(0).contiguous()
    return tensor.contiguous()


def lse_of(lse: Tensor, packed: bool) -> Tensor:
    """Log-sum-exp (B, N, S) as the operators return it: float32 (B, N, S, 1), or (T, N, 1) if packed."""
    lse = lse.squeeze(0).transpose(0, 1) if packed else lse
    return lse.to(torch.float32).contiguous().unsqueeze(-1)
