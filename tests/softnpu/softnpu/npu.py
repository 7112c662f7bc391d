"""Kernels of torch_npu's own operators: this project's CPU kernels, and the few others a model meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from torch import Tensor
from torch._ops import OpOverload

from npu_compile.kernels.cpu import CPU_KERNELS
from npu_compile.kernels.register import ensure_npu_ops

from .aten import find, register
from .contract import checker
from .fusion_attention import npu_fusion_attention_v3
from .kernel import Kernel

FIA = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")

FUSION_V3 = "npu_fusion_attention_v3"


def install() -> None:
    """Put the kernels in place of torch_npu's, which would look for libopapi."""
    ensure_npu_ops()
    for name in CPU_KERNELS:
        register(f"npu::{name}", Kernel(operator(name), check=checker(name)))
    for name in FIA:
        out = Kernel(operator(f"{name}.out"), _writing_out(name), mutates=("out",), check=checker(name))
        register(f"npu::{name}.out", out)
        register(f"npu::_{name}_get_max_workspace", _workspace)
    register(f"npu::{FUSION_V3}", Kernel(operator(FUSION_V3), npu_fusion_attention_v3))
    register("npu::_npu_dtype_cast", Kernel(operator("_npu_dtype_cast"), _dtype_cast))


def operator(name: str) -> OpOverload:
    op = find(f"npu::{name}")
    if op is None:
        raise LookupError(f"torch_npu {torch_npu.__version__} has no npu::{name}")
    return op


def _writing_out(name: str) -> Callable[..., Any]:
    """The CPU kernel of FIA as its ``.out`` overload, which a capture records."""

    def kernel(*args: Any, workspace: Tensor | None = None, out: list[Tensor], **kwargs: Any) -> list[Tensor]:
        for target, result in zip(out, operator(name)(*args, **kwargs), strict=True):
            if target.numel() == result.numel():  # the LSE is empty when it isn't asked for
                target.copy_(result)
        return out

    return kernel


def _workspace(*args: Any, **kwargs: Any) -> Tensor:
    """What the tiling would ask for; nothing here uses it."""
    return torch.empty(1024, dtype=torch.uint8, device="npu")


def _dtype_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype, copy=True)
