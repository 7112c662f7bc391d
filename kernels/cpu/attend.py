"""softmax(scale * Q K^T + bias) V of requests of one length, on PyTorch's own fused CPU kernel.

Layout: q (b, N, Lq, D), k (b, N_kv, Lkv, D), v (b, N_kv, Lkv, Dv), any strides; query head n reads K/V head
n // (N / N_kv). Results: out (b, N, Lq, Dv) in the widest dtype of the inputs, and the log-sum-exp of the
scaled and masked scores, natural log, (b, N, Lq) in float32 (float64 for float64 inputs). A row that sees no
key gets out 0 and lse -inf.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_flash = torch._scaled_dot_product_flash_attention_for_cpu

ROW_CHUNK = 256
"""Rows of a banded call that share one explicit mask: small enough that hidden keys are mostly skipped."""


@dataclass(frozen=True, slots=True)
class Band:
    """Row i sees key j if ``lower + i <= j <= upper + i``, both from the top left; None is no limit."""

    lower: int | None = None
    upper: int | None = None

    def shifted(self, rows: int, columns: int) -> Band:
        """The band seen from row ``rows`` and column ``columns``."""
        lower = None if self.lower is None else self.lower + rows - columns
        upper = None if self.upper is None else self.upper + rows - columns
        return Band(lower, upper)

    def columns(self, q_len: int, kv_len: int) -> tuple[int, int]:
        """The half-open range of keys that some of ``q_len`` rows see."""
        start = 0 if self.lower is None else min(max(0, self.lower), kv_len)
        stop = kv_len if self.upper is None else max(start, min(kv_len, self.upper + q_len))
        return start, stop

    def limits(self, q_len: int, kv_len: int) -> tuple[bool, bool]:
        """Whether the lower and the upper limit hide any key from any of ``q_len`` rows."""
        lower = self.lower is not None and self.lower + q_len - 1 > 0
        upper = self.upper is not None and self.upper < kv_len - 1
        return lower, upper

    def hidden(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """(q_len, kv_len) bool, True where the key is outside the band."""
        hidden = torch.zeros(q_len, kv_len, dtype=torch.bool, device=device)
        everything = torch.ones_like(hidden)
        if self.upper is not None:
            hidden |= everything.triu(self.upper + 1)
        if self.lower is not None:
            hidden |= everything.tril(self.lower - 1)
        return hidden


EVERYTHING = Band()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    band: Band = EVERYTHING,
    hidden: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of ``b`` requests that share Lq and Lkv.

    ``hidden`` is bool, True where a key is masked out, and ``bias`` is added to the scaled scores; both
    broadcast to (b, N, Lq, Lkv). What is outside ``band`` is not computed, except at its edges.
    """
    if q.numel() == 0 or k.numel() == 0:
        return nothing(q, v)
    value_dim = v.shape[-1]
    q, k, v = _same_dim(*_same_dtype(q, k, v))
    if hidden is not None or bias is not None:
        out, lse = _masked(q, k, v, scale, band, hidden, bias)
    else:
        out, lse = _banded(q, k, v, scale, band)
    return (out if out.shape[-1] == value_dim else out[..., :value_dim]), lse


def nothing(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """What rows get that see no key: out 0, lse -inf."""
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    return out, q.new_full(q.shape[:-1], float("-inf"), dtype=_lse_dtype(q.dtype))


def _lse_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _same_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if not q.dtype == k.dtype == v.dtype:
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return _rows(q), _rows(k), _rows(v)


def _rows(tensor: Tensor) -> Tensor:
    """The fused kernel reads rows as if their elements were neighbours, without a check."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _same_dim(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The fused kernel wants D == Dv: zeros appended to the narrower side leave scores and result alone."""
    dim, value_dim = q.shape[-1], v.shape[-1]
    if dim > value_dim:
        v = F.pad(v, (0, dim - value_dim))
    elif dim < value_dim:
        q, k = F.pad(q, (0, value_dim - dim)), F.pad(k, (0, value_dim - dim))
    return q, k, v


def _call(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One fused call without causality. A single query token is computed with the heads of its group as rows,
    so that K and V are read once per K/V head."""
    batch, heads, q_len, dim = q.shape
    kv_heads = k.shape[1]
    if q_len != 1 or heads == kv_heads:
        return _flash(q, k, v, attn_mask=mask, scale=scale)
    rows = q.reshape(batch, kv_heads, heads // kv_heads, dim)
    if mask is not None and mask.shape[1] != 1:
        mask = mask.reshape(mask.shape[0], kv_heads, heads // kv_heads, -1)
    out, lse = _flash(rows, k, v, attn_mask=mask, scale=scale)
    return out.reshape(batch, heads, 1, dim), lse.reshape(batch, heads, 1)


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    band: Band,
    hidden: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    q_len, kv_len = q.shape[2], k.shape[2]
    if any(band.limits(q_len, kv_len)):
        outside = band.hidden(q_len, kv_len, q.device)
        hidden = outside if hidden is None else hidden | outside
    mask = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else _addend(bias, q.dtype)
    if hidden is not None:
        mask = mask.masked_fill(hidden, float("-inf"))
    mask = mask[(None,) * (4 - mask.dim())]
    out, lse = _call(q, k, v, scale, mask)
    # The fused kernel gives such rows out 0, as it should, but lse 0.
    return out, lse.masked_fill((mask == float("-inf")).all(-1), float("-inf"))


def _addend(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 bias is taken as it is, which keeps precision; the fused kernel reads it wrongly for float64
    inputs."""
    return bias if bias.dtype == torch.float32 and dtype != torch.float64 else bias.to(dtype)


def _banded(q: Tensor, k: Tensor, v: Tensor, scale: float, band: Band) -> tuple[Tensor, Tensor]:
    q_len, kv_len = q.shape[2], k.shape[2]
    lower, upper = band.limits(q_len, kv_len)
    if not lower and not upper:
        return _call(q, k, v, scale)
    if not lower and band.upper == 0:
        return _flash(q, k, v, is_causal=True, scale=scale)
    chunks = []
    for first in range(0, q_len, ROW_CHUNK):
        rows = q[:, :, first : first + ROW_CHUNK]
        start, stop = band.shifted(first, 0).columns(rows.shape[2], kv_len)
        local = band.shifted(first, start)
        if start == stop:
            chunks.append(nothing(rows, v))
        elif any(local.limits(rows.shape[2], stop - start)):
            hidden = local.hidden(rows.shape[2], stop - start, q.device)
            chunks.append(
                _masked(rows, k[:, :, start:stop], v[:, :, start:stop], scale, EVERYTHING, hidden, None)
            )
        else:
            chunks.append(_call(rows, k[:, :, start:stop], v[:, :, start:stop], scale))
    if len(chunks) == 1:
        return chunks[0]
    return torch.cat([out for out, _ in chunks], 2), torch.cat([lse for _, lse in chunks], 2)
