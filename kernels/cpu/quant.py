"""Quantised keys and values, and quantised results.

The operators' convention is ``real = (stored + offset) * scale`` on the way in (torch_npu docs) and
``stored = clamp(round(real * scale + offset))`` on the way out, rounded half to even.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .paging import Paged
from .requests import Request
from .tokens import Constant, Tokens

INT4_PER_INT32 = 8


@dataclass(frozen=True, slots=True)
class Int4:
    """int4 values, eight to an int32 along the head dim, the lowest bits first."""

    packed: Tokens

    def read(self, request: Request) -> Tensor:
        return unpack_int4(self.packed.read(request))


def unpack_int4(packed: Tensor) -> Tensor:
    """(..., D) int32 to (..., 8 * D) int32 with values from -8 to 7."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    nibbles = (packed.unsqueeze(-1) >> shifts) & 15
    return (nibbles - ((nibbles & 8) << 1)).flatten(-2)


@dataclass(frozen=True, slots=True)
class PerToken:
    """A scale for each token, (B, N_kv or 1, S)."""

    scale: Tensor

    def read(self, request: Request) -> Tensor:
        return self.scale[request.index, :, request.key.start : request.key.stop].unsqueeze(-1)


@dataclass(frozen=True, slots=True)
class Dequantised:
    """``(stored + offset) * scale`` in float32."""

    stored: Tokens
    scale: Tokens
    offset: Tokens | None

    def read(self, request: Request) -> Tensor:
        values = self.stored.read(request).to(torch.float32)
        if self.offset is not None:
            values = values + self.offset.read(request)
        return values * self.scale.read(request)


@dataclass(frozen=True, slots=True)
class Factors:
    """Scale and offset of quantised keys or values, and the mode that says what they are given for.

    0 per channel or per tensor, 1 per token, 2 per head, 3 per token and head, 4 per token and paged, 5 per
    token and head, paged.
    """

    mode: int
    scale: Tensor
    offset: Tensor | None

    @staticmethod
    def given(mode: int, scale: Tensor | None, offset: Tensor | None) -> Factors | None:
        """The factors, or None where there is no scale."""
        return None if scale is None else Factors(mode, scale, offset)

    def of(self, stored: Tokens, kv_heads: int, paged: bool) -> Dequantised:
        """``stored`` as real numbers. Raises ValueError for an unknown mode, or a paged one of what isn't."""
        offset = None if self.offset is None else self._tokens(self.offset, kv_heads, paged)
        return Dequantised(stored, self._tokens(self.scale, kv_heads, paged), offset)

    def _tokens(self, factor: Tensor, kv_heads: int, paged: bool) -> Tokens:
        if self.mode == 0:
            return Constant(factor.reshape(()) if factor.numel() == 1 else factor.reshape(kv_heads, 1, -1))
        if self.mode == 1:
            return PerToken(factor.reshape(factor.shape[-2], 1, factor.shape[-1]))
        if self.mode == 2:
            return Constant(factor.reshape(kv_heads, 1, 1))
        if self.mode == 3:
            return PerToken(factor)
        if self.mode not in (4, 5):
            raise ValueError(f"quantisation mode {self.mode} isn't one of 0 to 5")
        if not paged:
            raise ValueError(
                f"block_table: quantisation mode {self.mode} keeps its scales in pages, got None"
            )
        return Paged(factor.unsqueeze(-1), 1 if self.mode == 4 else kv_heads)


def to_int8(values: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """``clamp(round(values * scale + offset), -128, 127)``, half to even; scale and offset broadcast."""
    scaled = values.to(torch.float32) * scale.to(torch.float32)
    if offset is not None:
        scaled = scaled + offset.to(torch.float32)
    return scaled.round().clamp(-128, 127).to(torch.int8)
