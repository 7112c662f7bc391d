"""NPU tensors seen from the host: aliases, and the arguments of a kernel mapped to CPU or meta."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def alias(tensor: Tensor) -> Tensor:
    """A CPU tensor over the bytes of an NPU tensor; it doesn't keep them alive."""
    storage = tensor.untyped_storage()
    size, address = storage.nbytes(), storage.data_ptr()
    if tensor.numel() == 0 or size == 0 or address == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    raw = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
    result = torch.empty(0, dtype=tensor.dtype).set_(
        raw.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    if tensor.is_conj():
        result = torch._conj(result)
    return torch._neg_view(result) if tensor.is_neg() else result


def on_npu(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == "npu"


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """``value`` with ``function`` applied to every tensor, device and generator in it."""
    if isinstance(value, Tensor | torch.device | torch.Generator):
        return function(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(mapped(item, function) for item in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Tensor):
        yield value


def result_mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A kernel's result with ``function`` applied to every value in it."""
    if isinstance(value, list | tuple):
        return type(value)(result_mapped(item, function) for item in value)
    return function(value)


def to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return alias(value) if value.device.type == "npu" else value
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "npu" else value
    return None  # a generator: draws come from the CPU's default one


def to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.device.type != "npu" and not value.dim():
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else None


def to_scratch(value: Any) -> Any:
    """CPU zeros in the shape of an NPU tensor, for a run whose values don't matter."""
    return torch.zeros_like(value, device="cpu") if on_npu(value) else to_cpu(value)


def empty_like(tensor: Tensor, device: int | None) -> Tensor:
    """An NPU tensor of the sizes, strides and dtype of ``tensor``."""
    where = "npu" if device is None else torch.device("npu", device)
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=where)


def from_cpu(result: Any, inputs: list[Tensor], device: int | None) -> Any:
    """An NPU tensor for a CPU result: a view of an input where the result is one, else a copy."""
    if not isinstance(result, Tensor):
        return result
    address = result.untyped_storage().data_ptr()
    if address and result.numel():
        for tensor in inputs:
            if tensor.untyped_storage().data_ptr() == address:
                return _view_as(tensor, result)
    output = empty_like(result, device)
    if result.numel():
        alias(output).copy_(result)
    return output


def _view_as(tensor: Tensor, view: Tensor) -> Tensor:
    def form(t: Tensor) -> tuple[object, ...]:
        return t.size(), t.stride(), t.storage_offset(), t.dtype

    if form(tensor) == form(view):
        return tensor
    return torch.as_strided(tensor, view.size(), view.stride(), view.storage_offset())
