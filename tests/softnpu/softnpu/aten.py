"""Give every ATen operator with a CPU or an NPU kernel its software NPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library

from .copies import copy_
from .kernel import Kernel

# Kernels of torch_npu that only touch metadata, the allocator or the runtime stay as they are.
NATIVE = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::new_empty_strided", "aten::empty_like",
    "aten::empty_with_format", "aten::unsafe_empty_with_format", "aten::empty_with_swapped_memory",
    "aten::resize_", "aten::resize_as_", "aten::_pin_memory", "aten::is_pinned", "aten::is_set_to",
    "aten::set_",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_.source_Storage",
    "aten::record_stream", "aten::_local_scalar_dense", "aten::_to_copy", "aten::get_storage_size",
    "aten::_lazy_clone", "aten::contiguous",
}  # fmt: skip

_libraries: dict[str, Library] = {}


def matmul_backward(grad: Tensor, a: Tensor, b: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor]:
    """An ATen operator that only torch_npu has a kernel for: its autograd formula of matmul calls it."""
    x, y = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    g = grad.unsqueeze(-1) if b.dim() == 1 else grad
    g = g.unsqueeze(-2) if a.dim() == 1 else g
    return (
        (g @ y.mT).sum_to_size(x.shape).view(a.shape) if mask[0] else grad.new_empty(0),
        (x.mT @ g).sum_to_size(y.shape).view(b.shape) if mask[1] else grad.new_empty(0),
    )


CPU_ONLY_HERE = {"aten::matmul_backward": matmul_backward}


def find(qualified: str) -> OpOverload | None:
    """The operator of a name such as ``aten::add.Tensor``; None where torch doesn't know it."""
    base, _, overload = qualified.partition(".")
    namespace, name = base.split("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def register(qualified: str, kernel: Callable[..., Any]) -> None:
    """Make ``kernel`` the operator's kernel for NPU tensors, over torch_npu's own."""
    namespace, name = qualified.split("::")
    library = _libraries.setdefault(namespace, Library(namespace, "IMPL"))
    library.impl(name, kernel, "PrivateUse1", allow_override=True)


def install() -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    of_npu = set(registered("PrivateUse1"))
    names = {name for name in of_npu | set(registered("CPU")) if name.startswith("aten::")} - NATIVE
    for name in sorted(names):
        op = find(name)
        if op is None or _only_metadata(op):
            continue
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if composite and name not in of_npu:
            continue
        register(name, copy_ if name == "aten::copy_" else Kernel(op, cpu=CPU_ONLY_HERE.get(name)))


def _only_metadata(op: OpOverload) -> bool:
    is_view = any(r.alias_info and not r.alias_info.is_write for r in op._schema.returns)
    return is_view or torch.Tag.inplace_view in op.tags
