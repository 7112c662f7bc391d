"""Are these tensors where they were? Asked of every parameter and cache at every step: must be cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

_data_ptr = torch.Tensor.data_ptr


class Addresses:
    """The addresses that the tensors at ``positions`` of ``args`` have now."""

    def __init__(self, args: Sequence[Any], positions: Sequence[int]) -> None:
        self.positions = list(positions)
        self.expected = [args[i].data_ptr() for i in positions]
        self._by_input = [arg.data_ptr() if i in set(positions) else None for i, arg in enumerate(args)]
        self._all_equal = _native_check()
        self._pick = itemgetter(*positions, *positions[:1]) if positions else None  # two at least: a tuple

    def unchanged(self, args: Sequence[Any]) -> bool:
        """Whether the tensors of ``args`` lie at the same addresses."""
        if self._pick is None:
            return True
        if self._all_equal is not None:
            return self._all_equal(list(args), self._by_input, self.positions)
        return list(map(_data_ptr, self._pick(args)[:-1])) == self.expected

    def moved(self, args: Sequence[Any]) -> list[int]:
        """Positions of the tensors that lie elsewhere."""
        pairs = zip(self.positions, self.expected, strict=True)
        return [i for i, address in pairs if args[i].data_ptr() != address]


def _native_check() -> Callable[[list[Any], list[int | None], list[int]], bool] | None:
    """The check that torch's CUDA builds and torch_npu have for their own captured graphs."""
    name = "_tensors_data_ptrs_at_indices_equal"
    native = [torch._C, getattr(sys.modules.get("torch_npu"), "_C", None)]
    return next((getattr(module, name) for module in native if hasattr(module, name)), None)
