"""CPU kernel of npu_transpose_batchmatmul."""

from __future__ import annotations

import torch
from torch import Tensor

from .int8_attention import as_float
from .norms import compute_dtype


def npu_transpose_batchmatmul(
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
    """``input`` permuted to (B, M, K) times ``weight`` permuted to (B, K, N), with the batch put second: (M,
    B, N).

    With ``scale`` (B * N,), uint64 or int64 holding float32, the product is quantised: int8 (M, 1, B * N).
    With ``batch_split_factor`` f > 1 it is (f, M, B * N / f): B * N cut in f parts. ``bias`` isn't supported
    by the operator.
    """
    if bias is not None:
        raise ValueError("bias: the operator doesn't support it")
    if perm_y is not None and list(perm_y) != [1, 0, 2]:
        raise ValueError(f"perm_y: {list(perm_y)} isn't [1, 0, 2]")
    left = input.permute(perm_x1 or [0, 1, 2]).to(compute_dtype(input))
    right = weight.permute(perm_x2 or [0, 1, 2]).to(left.dtype)
    if left.shape[0] != right.shape[0] or left.shape[2] != right.shape[1]:
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise ValueError(f"weight: permuted to (B, M, K) and (B, K, N), the tensors are {shapes}")
    product = (left @ right).transpose(0, 1)
    rows, batch, columns = product.shape
    if scale is not None:
        stored = product.reshape(rows, 1, batch * columns) * as_float(scale)
        return stored.round().clamp(-128, 127).to(torch.int8)
    out = product.to(input.dtype)
    factor = batch_split_factor or 1
    if factor == 1:
        return out.contiguous()
    if batch * columns % factor:
        raise ValueError(f"batch_split_factor: {factor} doesn't divide {batch} * {columns}")
    return out.reshape(rows, factor, batch * columns // factor).transpose(0, 1).contiguous()
