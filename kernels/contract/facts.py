"""What the rules may know of an argument: everything but the data of a tensor.

Sizes may be symbolic. A rule counts as broken only when that is certain for every value the symbols can
take, so that checking a call while it is traced adds no guard to the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..lengths import INTEGERS


def proven(condition: bool | torch.SymBool) -> bool:
    """Whether ``condition`` holds for certain; no guard is added."""
    return condition if isinstance(condition, bool) else statically_known_true(condition)


def unequal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes differ for certain."""
    return len(left) != len(right) or any(proven(a != b) for a, b in zip(left, right, strict=True))


def round_up(size: Any, to: int) -> Any:
    return (size + to - 1) // to * to


class TensorFacts(NamedTuple):
    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    contiguous: bool
    """False only where it is certain."""

    @property
    def numel(self) -> Any:
        count: Any = 1
        for size in self.shape:
            count = count * size
        return count

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, self.shape))}]"


class ListFacts(NamedTuple):
    """A list of sequence lengths, without their values."""

    requests: int

    def __str__(self) -> str:
        return f"a list of {self.requests}"


def tensor_facts(tensor: Tensor) -> TensorFacts:
    shape = tensor.shape
    if type(tensor) is Tensor or all(type(size) is int for size in shape):
        return TensorFacts(shape, tensor.dtype, tensor.device, tensor.is_contiguous())
    return TensorFacts(shape, tensor.dtype, tensor.device, not _strided(shape, tensor.stride()))


def _strided(shape: tuple[Any, ...], strides: Iterable[Any]) -> bool:
    """Whether a symbolic shape's strides are certainly not those of a contiguous tensor."""
    expected: Any = 1
    for size, stride in zip(reversed(shape), reversed(tuple(strides)), strict=True):
        if proven(size != 1) and proven(stride != expected):
            return True
        expected = expected * size
    return False


def facts(value: Any, is_lengths: bool = False) -> Any:
    """A hashable description of an argument; scalars and short lists of numbers stay what they are."""
    if isinstance(value, Tensor):
        return tensor_facts(value)
    if isinstance(value, (list, tuple)):
        return ListFacts(len(value)) if is_lengths else tuple(facts(item) for item in value)
    return value


def host_tensor(value: Any) -> Tensor | None:
    """``value`` where it is a tensor whose data lies in host memory; not a fake one, which only says so."""
    return value if type(value) is Tensor and value.device.type == "cpu" else None


def int_values(lengths: Any) -> list[int] | None:
    """The values of sequence lengths, or None where they aren't known without waiting or guarding.

    Raises nothing: lengths that aren't integers are for a rule to find.
    """
    if isinstance(lengths, (list, tuple)):
        whole = all(type(x) is int or (isinstance(x, Integral) and type(x) is not bool) for x in lengths)
        return [int(x) for x in lengths] if whole else None
    tensor = host_tensor(lengths)
    if tensor is None or tensor.dim() != 1 or tensor.dtype not in INTEGERS:
        return None
    values: list[int] = tensor.tolist()
    return values
