"""Ints that change at every step: kept out of the capture where they are values, not sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.runtime import CapturedCallable, capture
from npu_compile.runtime.split import split


def traced(function: Callable[..., Any], *args: Any) -> torch.fx.GraphModule:
    """Ints become symbols, as dynamo gives them."""
    return make_fx(function, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)(*args)


def captures(function: Callable[..., Any], x: Tensor, *ints: tuple[int, ...]) -> CapturedCallable:
    """Call with each of ``ints`` and compare with the function itself."""
    compiled = capture(traced(function, x, *ints[0]))
    for values in ints:
        expected, got = function(x, *values), compiled(x, *values)
        torch.testing.assert_close(got, type(got)(expected))
    return compiled


STEPS = [(5,), (6,), (7,), (40,)]


def test_a_value_is_not_captured() -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        position = torch.arange(4) + n
        return x * position, position.float() * 0.5

    assert captures(step, torch.rand(3, 4), *STEPS).stats.captures == 1


def test_arithmetic_on_values() -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        offset = torch.sym_max(n - 16 + 1, 0)
        return (x + offset, torch.arange(4) + (n * 3), x * n)

    assert captures(step, torch.rand(3, 4), *STEPS).stats.captures == 1


def test_comparisons() -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return torch.arange(9) <= n, x + (torch.arange(4) < n - 4)

    assert captures(step, torch.rand(3, 4), *STEPS).stats.captures == 1


def test_int_results_follow_the_step() -> None:
    def step(x: Tensor, n: int) -> tuple[Any, ...]:
        return x + n, n + 1, n

    function = captures(step, torch.rand(3), *STEPS)
    assert function.stats.captures == 1
    assert function(torch.rand(3), 99)[1:] == [100, 99]


def test_a_size_is_captured() -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return (x + torch.ones(n)[:1],)

    assert captures(step, torch.rand(3), *STEPS).stats.captures == 4


def test_a_value_that_is_a_size_too_is_captured() -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return x + n, torch.ones(n + 1)

    assert captures(step, torch.rand(3), *STEPS).stats.captures == 4


def test_two_ints_one_of_them_a_size() -> None:
    def step(x: Tensor, n: int, size: int) -> tuple[Tensor, ...]:
        return (torch.ones(size) * (n + size) + x[:1],)

    function = captures(step, torch.rand(3), (5, 7), (6, 7), (9, 7), (9, 8))
    assert function.stats.captures == 2


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool]
)
@pytest.mark.parametrize("shape", [(4,), ()])
def test_dtypes_stay(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def step(x: Tensor, n: int) -> tuple[Tensor, ...]:
        return (x + n,)

    captures(step, torch.ones(shape, dtype=dtype), *STEPS)


def test_a_graph_without_ints() -> None:
    assert split(traced(lambda x: (x + 1,), torch.rand(3))).ints is None
