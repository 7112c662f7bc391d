"""Fakes of norms, rotary embeddings, the merging of partial results and training attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _attention_update(lse: list[Tensor], local_out: list[Tensor], update_type: int) -> tuple[Tensor, Tensor]:
    return local_out[0].new_empty(local_out[0].shape), lse[0].new_empty(lse[0].shape)


def _ring_attention_update(
    prev_attn_out: Tensor, prev_softmax_max: Tensor, prev_softmax_sum: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(prev_attn_out),
        torch.empty_like(prev_softmax_max),
        torch.empty_like(prev_softmax_sum),
    )


def _same(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


def _rotary_mul(input: Tensor, r1: Tensor, r2: Tensor, *_: Any, **__: Any) -> Tensor:
    return input.new_empty(input.shape)


def _rstd(x: Tensor, gamma: Tensor) -> Tensor:
    kept = x.dim() - gamma.dim()
    return x.new_empty([*x.shape[:kept], *[1] * gamma.dim()], dtype=torch.float32)


def _rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _rstd(input, gamma)


def _add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x1), _rstd(x1, gamma), torch.empty_like(x1)


def _transpose_batchmatmul(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    perm_x1: list[int] | None = None,
    perm_x2: list[int] | None = None,
    perm_y: list[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:
    """Batch ends up second: (M, B, N). Quantised, (M, 1, B * N); split, (factor, M, B * N / factor)."""
    perm_x1, perm_x2 = perm_x1 or [0, 1, 2], perm_x2 or [0, 1, 2]
    batch, rows = input.shape[perm_x1.index(0)], input.shape[perm_x1.index(1)]
    columns = weight.shape[perm_x2.index(2)]
    factor = batch_split_factor or 1
    if factor > 1:
        shape = [factor, rows, batch * columns // factor]
    elif scale is not None:
        shape = [rows, 1, batch * columns]
    else:
        shape = [rows, batch, columns]
    return input.new_empty(shape, dtype=input.dtype if scale is None else torch.int8)


def _fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Output; maximum and sum of the softmax, repeated 8 times in the last dim; nothing of dropout."""
    if input_layout in ("BSH", "SBH"):
        head_dim = query.shape[2] // head_num
        out = [*query.shape[:2], head_num * (value.shape[2] // (key.shape[2] // head_dim))]
        batch, seq = query.shape[:2] if input_layout == "BSH" else query.shape[:2][::-1]
    else:
        out = [*query.shape[:-1], value.shape[-1]]
        batch, seq = query.shape[0], query.shape[1 if input_layout == "BSND" else 2]
    statistics = [batch, head_num, 8] if input_layout == "TND" else [batch, head_num, seq, 8]
    return (
        query.new_empty(out),
        query.new_empty(statistics, dtype=torch.float32),
        query.new_empty(statistics, dtype=torch.float32),
        query.new_empty([0]),
        0,
        0,
        0,
    )


FAKES: dict[str, Callable[..., Any]] = {
    "npu_attention_update": _attention_update,
    "npu_ring_attention_update": _ring_attention_update,
    "npu_interleave_rope": _same,
    "npu_rotary_mul": _rotary_mul,
    "npu_rms_norm": _rms_norm,
    "npu_add_rms_norm": _add_rms_norm,
    "npu_transpose_batchmatmul": _transpose_batchmatmul,
    "npu_fusion_attention": _fusion_attention,
}
