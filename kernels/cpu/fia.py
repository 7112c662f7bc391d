"""Fused infer attention (FIA): what both operator versions have in common.

``fia_v1`` and ``fia_v2`` translate their arguments to a :class:`Call`. Work is done only inside the lengths:
rows beyond a request's query length give 0, keys beyond its key length are never read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layouts import Layout
from .attend import attend
from .masks import Mask, bias_of
from .quant import to_int8
from .requests import Request
from .tokens import Tokens
from .views import as_bnsd, from_bnsd, lse_of

Attend = Callable[..., tuple[Tensor, Tensor]]
"""A function with the arguments and results of :func:`attend.attend`."""


@dataclass(frozen=True, slots=True)
class Output:
    """How results leave: in ``dtype``, or as int8 by ``scale`` and ``offset``, of one element or N * Dv."""

    dtype: torch.dtype
    scale: Tensor | None = None
    offset: Tensor | None = None

    def of(self, out: Tensor) -> Tensor:
        """``out`` (b, N, Lq, Dv) in its final dtype."""
        if self.scale is None:
            return out if out.dtype == self.dtype else out.to(self.dtype)
        offset = None if self.offset is None else self._channels(self.offset, out)
        return to_int8(out, self._channels(self.scale, out), offset)

    @staticmethod
    def _channels(factor: Tensor, out: Tensor) -> Tensor:
        return factor.reshape(()) if factor.numel() == 1 else factor.reshape(out.shape[1], 1, out.shape[3])


@dataclass(frozen=True, slots=True)
class Call:
    """One FIA call, independent of the operator version.

    ``query`` is a (B, N, S, D) view, (1, N, T, D) if packed; ``bias`` (1 or B, N, Q, KV) is added to the
    scaled scores; ``sink`` (N,) are logits that take part in the softmax sum but have no value row.
    """

    layout: Layout
    query: Tensor
    key: Tokens
    value: Tokens
    value_dim: int
    scale: float
    mask: Mask
    output: Output
    lse: bool
    bias: Tensor | None = None
    sink: Tensor | None = None
    attend: Attend = attend


def run(call: Call, requests: list[Request]) -> tuple[Tensor, Tensor]:
    """The output in its layout; the log-sum-exp, float32 (B, N, S, 1) or (T, N, 1), (0,) if not asked for."""
    layout, query = call.layout, call.query
    if len(requests) == 1 and requests[0].query.covers(query):
        out, lse = _compute(call, requests[0], 0)
        return from_bnsd(out, layout.output), lse_of(lse, layout.packed) if call.lse else _no_lse(query)
    batch, heads, q_len, _ = query.shape
    shape = (batch, heads, q_len, call.value_dim)
    out = from_bnsd(torch.zeros(shape, dtype=call.output.dtype, device=query.device), layout.output)
    view = as_bnsd(out, layout.output, heads)
    lse = torch.full(shape[:3] if call.lse else (0,), float("-inf"), dtype=torch.float32, device=query.device)
    trees_before = 0
    for request in requests:
        part, part_lse = _compute(call, request, trees_before)
        request.query.of(view).copy_(part)
        if call.lse:
            request.query.of(lse.unsqueeze(-1)).copy_(part_lse.unsqueeze(-1))
        trees_before += request.q_len**2
    return out, lse_of(lse, layout.packed) if call.lse else lse


def _no_lse(query: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=query.device)


def _compute(call: Call, request: Request, trees_before: int) -> tuple[Tensor, Tensor]:
    """Attention of one request: (b, N, Lq, Dv) and the log-sum-exp (b, N, Lq)."""
    key, value = call.key.read(request), call.value.read(request)
    kv_len = key.shape[2]
    out, lse = call.attend(
        request.query.of(call.query),
        key,
        value,
        call.scale,
        call.mask.band(request.q_len, kv_len),
        call.mask.hidden(request, kv_len, trees_before),
        None if call.bias is None else bias_of(call.bias, request, kv_len),
    )
    if call.sink is not None:
        sink = call.sink.to(lse.dtype)[:, None]
        out = (out * torch.sigmoid(lse - sink).unsqueeze(-1)).to(out.dtype)
        lse = torch.logaddexp(lse, sink)
    return call.output.of(out), lse
