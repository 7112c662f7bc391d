"""CPU kernels of the RMS norms. They compute in float32, float64 on float64 inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which norms and rotary embeddings of ``tensor`` are computed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def rms(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """``x / rms * gamma`` over the last ``gamma.dim()`` dims, and 1 / rms; both not yet rounded to x's
    dtype."""
    wide = x.to(compute_dtype(x))
    dims = tuple(range(-gamma.dim(), 0))
    rstd = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + epsilon)
    return wide * rstd * gamma.to(wide.dtype), rstd


def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """RMS norm over ``gamma``'s dims; the second result is 1 / rms, float32, of size 1 in these dims."""
    _require_gamma(input, gamma)
    out, rstd = rms(input, gamma, epsilon)
    return out.to(input.dtype), rstd.to(torch.float32)


def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of ``x1 + x2``; returns the norm, 1 / rms and the sum, which is rounded to the inputs' dtype
    only after the norm has read it."""
    _require_gamma(x1, gamma)
    if x1.shape != x2.shape or x1.dtype != x2.dtype:
        have, need = (f"{t.dtype} {tuple(t.shape)}" for t in (x2, x1))
        raise ValueError(f"x2: it is {have}, x1 is {need}")
    total = x1.to(compute_dtype(x1)) + x2.to(compute_dtype(x1))
    out, rstd = rms(total, gamma, epsilon)
    return out.to(x1.dtype), rstd.to(torch.float32), total.to(x1.dtype)


def _require_gamma(x: Tensor, gamma: Tensor) -> None:
    if gamma.dim() == 0 or gamma.shape != x.shape[x.dim() - gamma.dim() :]:
        raise ValueError(f"gamma: {tuple(gamma.shape)} aren't the last dims of {tuple(x.shape)}")
