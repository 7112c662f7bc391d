"""Attention whose result nobody reads is told from attention that something depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.ledger.count import Counting
from tests.models.ledger.uses import Uses


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def returned(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    return {"layers": (q, [F.scaled_dot_product_attention(q, k, v)[:, 1:]])}


def dropped(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    written(q, k, v).relu().mean()
    return q + 1


def dropped_fused(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    F.scaled_dot_product_attention(q, k, v)
    return q + 1


def cached(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """Written into what was there before, through a view."""
    cache[1].copy_(written(q, k, v))


def added_in_place(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """The writing call's own result is not used."""
    total = torch.zeros_like(q)
    total[:, :2].add_(written(q, k, v)[:, :2])
    return total * 2


def scratch(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """Written into what the function makes and nobody reads."""
    total = torch.zeros_like(q)
    total.add_(written(q, k, v))
    return q * 2


def overwritten_too_late(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """Written into after the only read."""
    total = torch.zeros_like(q)
    out = total + 1
    total.add_(written(q, k, v))
    return out


def decides(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """A number, on which what else is done depends."""
    return q if written(q, k, v).sum().item() > 0 else k


def last_of_two(q: Tensor, k: Tensor, v: Tensor, cache: Tensor) -> Any:
    """Two streams of which only one reads the other: one of four is of no use."""
    one, other = written(q, k, v), F.scaled_dot_product_attention(k, q, v)
    one, other = written(one + other, k, v), written(other, k, v)
    return one


@pytest.mark.parametrize(
    ("function", "counted", "used"),
    [
        *((function, 1, 1) for function in (returned, cached, added_in_place, decides)),
        *((function, 1, 0) for function in (dropped, dropped_fused, scratch, overwritten_too_late)),
        (last_of_two, 4, 3),
    ],
)
def test_what_is_of_use(function: Callable[..., Any], counted: int, used: int) -> None:
    inputs = torch.randn(3, 2, 4, 9, 16).unbind()
    cache = torch.zeros(2, 2, 4, 9, 16)
    uses = Uses()
    with torch.no_grad(), Counting(uses) as counting:
        result = function(*inputs, cache)
    assert (counting.count.total, len(uses.leading_to(result))) == (counted, used)
