"""Layout names of the attention operators, as views in one common order.

Letters: B batch, N heads, S sequence, D head dim, H = N·D, T all tokens of all requests. ``A_B`` means that query,
key and value come in layout A and the output goes out in layout B (torch_npu docs).

Everything is viewed as (B, N, S, D), a packed layout as (1, N, T, D); no view copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """One ``input_layout``: how the inputs lie and how the output is to lie."""

    name: str
    input: str
    output: str

    @property
    def packed(self) -> bool:
        """Requests follow one another in one axis T, with cumulative lengths."""
        return "T" in self.input


LAYOUTS = {
    name: Layout(name, name.split("_")[0], name.split("_")[-1])
    for name in (
        "BSH BSND BNSD BNSD_BSND BSH_NBSD BSND_NBSD BNSD_NBSD BSH_BNSD BSND_BNSD TND NTD TND_NTD NTD_TND"
    ).split()
}


def layout_of(input_layout: str) -> Layout:
    """The layout of that name. Raises ValueError for a name FIA doesn't know."""
    try:
        return LAYOUTS[input_layout]
    except KeyError:
        raise ValueError(f"input_layout: {input_layout!r} isn't one of {', '.join(LAYOUTS)}") from None


def as_bnsd(tensor: Tensor, layout: str, heads: int) -> Tensor:
    """``tensor`` in ``layout``, viewed as (B, N, S, D); (1, N, T, D) if packed."""
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
    return tensor.unsqueeze(0)  # NTD


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
    if layout == "NTD":
        return tensor.squeeze(0).contiguous()
    return tensor.contiguous()


def lse_of(lse: Tensor, packed: bool) -> Tensor:
    """Log-sum-exp (B, N, S) as the operators return it: float32 (B, N, S, 1), or (T, N, 1) if packed."""
    lse = lse.squeeze(0).transpose(0, 1) if packed else lse
    return lse.to(torch.float32).contiguous().unsqueeze(-1)
