"""Attention on int8 queries, keys and values (FIA v1's full quantisation)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attend import EVERYTHING, Band, nothing


@dataclass(frozen=True, slots=True)
class Int8Attend:
    """Scores ``int8 x int8 * dequant_scale1``; probabilities, not yet divided by their sum, become int8 by
    ``quant_scale1``; their product with V is taken back by ``dequant_scale2`` (torch_npu docs).

    The factors are for the whole tensor, float32, or uint64 with the float32 in the low half.
    """

    dequant_scale1: Tensor
    quant_scale1: Tensor
    dequant_scale2: Tensor

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        band: Band = EVERYTHING,
        hidden: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As :func:`attend.attend`, on int8 tensors; the output is float32."""
        q, k, v = q.to(torch.float32), k.to(torch.float32), v.to(torch.float32)
        if q.numel() == 0 or k.numel() == 0:
            return nothing(q, v)
        batch, heads, q_len, dim = q.shape
        rows = q.reshape(batch, k.shape[1], -1, dim)  # the query heads of one K/V head, one after the other
        scores = (rows @ k.mT).reshape(batch, heads, q_len, -1) * (
            as_float(self.dequant_scale1).reshape(()) * scale
        )
        if bias is not None:
            scores = scores + bias
        outside = band.hidden(q_len, k.shape[2], q.device)
        scores = scores.masked_fill(outside if hidden is None else outside | hidden, float("-inf"))
        maximum = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - maximum.clamp(min=torch.finfo(torch.float32).min))
        total = weights.sum(-1, keepdim=True)
        stored = (weights * as_float(self.quant_scale1).reshape(())).round().clamp(-128, 127)
        product = (stored.reshape(batch, k.shape[1], rows.shape[2], -1) @ v).reshape(batch, heads, q_len, -1)
        out = product * as_float(self.dequant_scale2).reshape(()) / total
        lse = (maximum + total.log()).squeeze(-1)
        return out.masked_fill(total == 0, 0.0), lse


def as_float(factor: Tensor) -> Tensor:
    """A quantisation factor as float32: given as such, or as uint64 or int64 with the float32 in the low
    half."""
    if factor.dtype in (torch.uint64, torch.int64):
        return factor.contiguous().reshape(-1).view(torch.float32)[::2].reshape(factor.shape)
    return factor.to(torch.float32)
