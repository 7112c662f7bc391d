"""How close is close enough."""

from __future__ import annotations

import torch
from torch import Tensor

RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-6}
"""Of the largest magnitude. float64 leaves as float32 where an operator returns that."""


def assert_close(
    got: Tensor, want: Tensor, low_precision: Tensor | None = None, what: str = "result"
) -> None:
    """``got`` against ``want`` (float64): 1e-5 relative in float32; float16 and bfloat16 at most twice as far
    as ``low_precision``, the same computation done plainly in that dtype, or one rounding of the largest
    value."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if want.numel() == 0:
        return
    assert torch.isfinite(got.double()).all(), f"{what}: not finite"
    error = (got.double() - want).abs().max().item()
    largest = want.abs().max().item()
    if got.dtype in RELATIVE:
        bound = RELATIVE[got.dtype] * max(largest, 1e-2)
    else:
        assert low_precision is not None, "half precision is judged against a half-precision computation"
        plain = (low_precision.double() - want).abs().max().item()
        bound = max(2 * plain, torch.finfo(got.dtype).eps * largest)
    assert error <= bound, f"{what}: error {error:.2e}, allowed {bound:.2e}"


def assert_lse(got: Tensor, want: Tensor, tolerance: float, what: str = "log-sum-exp") -> None:
    """float32; rows without a key are -inf, in both."""
    assert got.dtype == torch.float32 and got.shape == want.shape, f"{what}: {got.dtype} {tuple(got.shape)}"
    empty = want == float("-inf")
    assert torch.equal(torch.isneginf(got), empty), f"{what}: -inf in the wrong rows"
    error = (got.double() - want)[~empty].abs()
    assert error.numel() == 0 or error.max().item() <= tolerance, f"{what}: error {error.max().item():.2e}"


def assert_rounded(got: Tensor, real: Tensor, what: str = "int8 result") -> None:
    """int8 ``got`` is ``real`` rounded and clamped; on a tie within 1e-3 either neighbour will do."""
    assert got.dtype == torch.int8 and got.shape == real.shape
    clamped = real.clamp(-128, 127)
    distance = (got.double() - clamped).abs()
    assert distance.numel() == 0 or distance.max().item() <= 0.5 + 1e-3, (
        f"{what}: off by {distance.max().item()}"
    )
