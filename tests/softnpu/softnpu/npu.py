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
from .kernel import Kernel

FIA = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")


def install() -> None:
    """Put the kernels in place of torch_npu's, which would look for libopapi."""
    ensure_npu_ops()
    for name in CPU_KERNELS:
        register(f"npu::{name}", Kernel(operator(name), check=checker(name)))
    for name in FIA:
        out = Kernel(operator(f"{name}.out"), _writing_out(name), mutates=("out",), check=checker(name))
        register(f"npu::{name}.out", out)
        register(f"npu::_{name}_get_max_workspace", _workspace)
    register("npu::npu_fusion_attention", Kernel(operator("npu_fusion_attention"), fusion_attention))
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


def fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    *rest: Any,
    **keywords: Any,
) -> tuple[Any, ...]:
    """The forward of npu_fusion_attention, which torch_npu's scaled_dot_product_attention calls (BNSD)."""
    if pse is not None or prefix is not None or keep_prob != 1.0 or input_layout != "BNSD":
        raise RuntimeError(
            "softnpu: npu_fusion_attention has pse, prefix, dropout or a layout other than BNSD"
        )
    keep = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    if atten_mask is not None and sparse_mode in (0, 1):
        keep = ~atten_mask.bool()
    elif sparse_mode == 2:
        keep = keep.tril()
    elif sparse_mode == 3:
        keep = keep.tril(key.shape[2] - query.shape[2])
    elif sparse_mode not in (0, 1):
        raise RuntimeError(f"softnpu: npu_fusion_attention has no kernel for sparse_mode={sparse_mode}")
    groups = query.shape[1] // key.shape[1]
    k, v = (x.float().repeat_interleave(groups, 1) for x in (key, value))
    scores = (query.float() @ k.mT * scale).masked_fill(~keep, float("-inf"))
    output = (torch.softmax(scores, -1).nan_to_num() @ v).to(query.dtype)
    statistics = torch.logsumexp(scores, -1, keepdim=True).expand(*scores.shape[:-1], 8).contiguous()
    return output, statistics, torch.ones_like(statistics), query.new_empty(0), 0, 0, 0
