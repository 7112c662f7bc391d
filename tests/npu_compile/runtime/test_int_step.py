"""The length program as Python arithmetic: the same lengths as with tensors, or not at all."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npu_compile.runtime.int_step import int_step
from npu_compile.runtime.split import split
from tests.npu_compile.runtime.decode_graphs import CAPACITY, N_KV, B, D, N, fia, host_lengths, lowered

Q, KV = torch.zeros(B, N, 1, D), torch.zeros(B, N_KV, CAPACITY, D)


def grown(c: Tensor) -> Tensor:
    return (c + 1).reshape(-1)


def window(c: Tensor) -> Tensor:
    return torch.clamp(c + 1, 0, 17).reshape(-1).expand(B)


def after(c: Tensor) -> Tensor:
    c.add_(3)
    return c.reshape(-1)


def around(c: Tensor) -> Tensor:
    first = c * 2 - 1
    c.add_(1)
    second = torch.maximum(first, c)
    c.sub_(1)
    return torch.minimum(second, c + 30).reshape(-1)


def through_a_view(c: Tensor) -> Tensor:
    view = c.view(1)
    c.add_(5)
    return view


def through_a_repeated_view(c: Tensor) -> Tensor:
    view = c.expand(2, 2).reshape(-1)
    c.add_(5)
    return view


def a_copy_before(c: Tensor) -> Tensor:
    copy = c.clone().reshape(-1)
    c.add_(5)
    return copy


def a_constant(c: Tensor) -> Tensor:
    return torch.full((B,), 17) + c * 0


SINGLE = [grown, window, after, around, through_a_view, through_a_repeated_view, a_copy_before, a_constant]


@pytest.mark.parametrize("lengths", SINGLE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("start", [0, 5, 40])
def test_the_same_as_tensors(lengths: Callable[[Tensor], Tensor], start: int) -> None:
    def step(q: Tensor, kv: Tensor, counter: Tensor) -> Tensor:
        return fia(q, kv, kv, host_lengths(lengths(counter)))

    parts = split(lowered(step, (Q, KV, torch.tensor(0))))
    assert parts.step is not None
    ints = int_step(parts.step)
    assert ints is not None
    counter = torch.tensor(start)
    want = lengths(counter).tolist()
    got, states = ints(start)
    assert got == [want]
    assert states == ([counter.item()] if parts.step.states else [])


def several_counters(c: Tensor) -> Tensor:
    return c + 1


def of_a_mask(c: Tensor) -> Tensor:
    return (c > 0).sum(-1, keepdim=True)


@pytest.mark.parametrize("lengths", [several_counters, of_a_mask], ids=lambda f: f.__name__)
def test_what_is_not_one_number_stays_with_tensors(lengths: Callable[[Tensor], Tensor]) -> None:
    def step(q: Tensor, kv: Tensor, counters: Tensor) -> Tensor:
        result = fia(q, kv, kv, host_lengths(lengths(counters)))
        counters.add_(1)
        return result

    parts = split(lowered(step, (Q, KV, torch.tensor([3, 9]))))
    assert parts.step is not None
    assert int_step(parts.step) is None
