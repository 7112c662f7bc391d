"""Fused infer attention (FIA), what both operator versions have in common.

``fia_v1`` and ``fia_v2`` translate their arguments to a :class:`Call`. Work is done only inside the lengths: rows
beyond a request's query length give 0, keys beyond its key length are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.kernels.cpu.attend import attend
from npu_compile.kernels.cpu.keys import KeyValues
from npu_compile.kernels.cpu.layouts import Layout, as_bnsd, from_bnsd, lse_of
from npu_compile.kernels.cpu.masks import Mask
from npu_compile.kernels.cpu.requests import Request


@dataclass(frozen=True, slots=True)
class Call:
    """One FIA call, independent of the operator version.

    ``query`` is a (B, N, S, D) view, (1, N, T, D) if packed; ``bias`` (1 or B, N, Q, KV) is added to the scaled
    scores; ``value_dim`` is Dv.
    """

    layout: Layout
    query: Tensor
    keys: KeyValues
    value_dim: int
    scale: float
    mask: Mask
    bias: Tensor | None = None


def run(call: Call, requests: list[Request]) -> tuple[Tensor, Tensor]:
    """The output in its layout and the log-sum-exp, (B, N, S, 1) or (T, N, 1), float32."""
    layout, query = call.layout, call.query
    if len(requests) == 1 and requests[0].query.covers(query):
        out, lse = compute(call, requests[0])
        return from_bnsd(out.to(query.dtype), layout.output), lse_of(lse, layout.packed)
    batch, heads, q_len, _ = query.shape
    out = from_bnsd(query.new_zeros(batch, heads, q_len, call.value_dim), layout.output)
    view = as_bnsd(out, layout.output, heads)
    lse = torch.full((batch, heads, q_len), float("-inf"), dtype=torch.float32, device=query.device)
    for request in requests:
        part, part_lse = compute(call, request)
        request.query.of(view).copy_(part)
        span = request.query
        lse[span.first : span.last, :, span.start : span.stop] = part_lse
    return out, lse_of(lse, layout.packed)


def compute(call: Call, request: Request) -> tuple[Tensor, Tensor]:
    """Attention of one request: (b, N, Lq, Dv) and the log-sum-exp (b, N, Lq)."""
    q_len, kv_len = request.q_len, request.kv_len
    key, value = call.keys.read(request)
    bias = call.bias
    if bias is not None:
        bias = (bias if bias.shape[0] == 1 else bias[request.index])[:, :, :q_len, :kv_len]
    return attend(
        request.query.of(call.query),
        key,
        value,
        call.scale,
        call.mask.band(q_len, kv_len),
        call.mask.hidden(request.index, q_len, kv_len),
        bias,
    )
