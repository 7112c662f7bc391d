"""Random numbers and sizes for a call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Draw:
    """Sizes from ``rng``, tensors from a torch generator that it seeds."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.generator = torch.Generator().manual_seed(rng.randint(0, 2**31))

    def one_of(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def maybe(self) -> bool:
        return self.rng.random() < 0.5

    def size(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def dtype(self, double: bool = True) -> torch.dtype:
        return self.rng.choice(FLOATS if double else [d for d in FLOATS if d != torch.float64])

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, generator=self.generator) * (high - low) + low

    def integers(self, *shape: int, low: int, high: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Within low and high - 1."""
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype)

    def distinct(self, count: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """``count`` different integers."""
        return torch.randperm(below, generator=self.generator)[:count].to(dtype)


def calls(make: Callable[[Draw], Any]) -> st.SearchStrategy[Any]:
    """What ``make`` builds from random draws."""
    return st.randoms(use_true_random=True).map(lambda rng: make(Draw(rng)))
