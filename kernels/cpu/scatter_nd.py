"""CPU kernels of npu_scatter_nd_update."""

from __future__ import annotations

import torch
from torch import Tensor


def npu_scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of ``input`` with ``updates`` written to it; see :func:`npu_scatter_nd_update_`."""
    return npu_scatter_nd_update_(input.clone(), indices, updates)


def npu_scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write ``updates`` (..., *input.shape[k:]) to the places ``indices`` (..., k) of ``input``, in place.

    Raises before anything is written if an index is out of range or a shape doesn't fit; of equal indices any
    may win, as on the device.
    """
    if indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices: they are int32 or int64, got {indices.dtype}")
    if indices.dim() < 2 or not 0 < indices.shape[-1] <= input.dim():
        raise ValueError(f"indices: {tuple(indices.shape)} isn't (..., k), k at most {input.dim()}")
    depth = indices.shape[-1]
    needed = (*indices.shape[:-1], *input.shape[depth:])
    if tuple(updates.shape) != needed or updates.dtype != input.dtype:
        have = f"{updates.dtype} {tuple(updates.shape)}"
        raise ValueError(f"updates: {have} isn't {input.dtype} {needed}")
    limits = torch.tensor(input.shape[:depth], device=indices.device)
    if ((indices < 0) | (indices >= limits)).any():
        raise ValueError(f"indices: an index is outside of {tuple(input.shape[:depth])}")
    input[indices.to(torch.int64).unbind(-1)] = updates
    return input
