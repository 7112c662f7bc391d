"""CPU kernels of what NPUGraph records for FIA: ``.out`` with given outputs, and their allocators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..fakes import FAKES
from .fia_v1 import npu_fused_infer_attention_score as v1
from .fia_v2 import npu_fused_infer_attention_score_v2 as v2


def _into(
    compute: Callable[..., tuple[Tensor, Tensor]],
    call: tuple[Any, ...],
    options: dict[str, Any],
    out: list[Tensor],
) -> tuple[Tensor, Tensor]:
    """Compute and copy the results into ``out``, the attention output and the log-sum-exp.

    Raises ValueError, with nothing written, if a shape or dtype differs; a log-sum-exp that wasn't asked for
    leaves its tensor alone.
    """
    results = compute(*call, **options)
    for name, target, result in zip(("attention_out", "softmax_lse"), out, results, strict=True):
        if result.numel() and (target.shape != result.shape or target.dtype != result.dtype):
            have, need = (f"{t.dtype} {tuple(t.shape)}" for t in (target, result))
            raise ValueError(f"out: {name} is {have}, the result {need}")
    for target, result in zip(out, results, strict=True):
        if result.numel():
            target.copy_(result)
    return out[0], out[1]


def npu_fused_infer_attention_score_out(
    *call: Tensor, workspace: Tensor | None = None, out: list[Tensor], **options: Any
) -> tuple[Tensor, Tensor]:
    """FIA v1 into ``out``; ``workspace`` is scratch memory of the device and not needed here."""
    return _into(v1, call, options, out)


def npu_fused_infer_attention_score_v2_out(
    *call: Tensor, workspace: Tensor | None = None, out: list[Tensor], **options: Any
) -> tuple[Tensor, Tensor]:
    """FIA v2 into ``out``; ``workspace`` is scratch memory of the device and not needed here."""
    return _into(v2, call, options, out)


# Allocating is all that the fakes do, on real tensors too.
v1_infer_output = FAKES["_npu_fused_infer_attention_score_infer_output"]
v2_infer_output = FAKES["_npu_fused_infer_attention_score_v2_infer_output"]
v1_max_workspace = FAKES["_npu_fused_infer_attention_score_get_max_workspace"]
v2_max_workspace = FAKES["_npu_fused_infer_attention_score_v2_get_max_workspace"]
