"""The counter counts attention and nothing else: small functions whose count is plain to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.ledger.count import Counting


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def sunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.cat([q @ k.transpose(-1, -2), torch.zeros(2, 4, 9, 1)], -1)
    return torch.softmax(scores, -1)[..., :-1] @ v


def summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bnqk,bnkd->bnqd", torch.einsum("bnqd,bnkd->bnqk", q, k).softmax(-1), v)


def three_dimensional(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (value.flatten(0, 1) for value in (q, k, v))
    scores = torch.baddbmm(torch.zeros(8, 9, 9), q, k.transpose(1, 2))
    return torch.bmm(F.softmax(scores.masked_fill(scores > 1, -1e9), dim=-1), v)


def masked_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(9, 9, dtype=torch.bool).tril())


def five_dimensional(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])


def learned_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(QUERY @ k.transpose(-1, -2), -1) @ v


def router(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    chosen = torch.softmax(F.linear(q, ROUTER), -1)
    return chosen @ EXPERTS


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v)


def similarity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1).amax(-1)


def no_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.transpose(-1, -2)) @ v


QUERY = nn.Parameter(torch.ones(1, 4, 1, 16))
ROUTER = nn.Parameter(torch.ones(3, 16))
EXPERTS = nn.Parameter(torch.ones(3, 16))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((function, 1) for function in (written, sunk, summed, three_dimensional)),
        *((function, 1) for function in (masked_fused, five_dimensional, learned_query)),
        *((function, 0) for function in (router, linear_attention, similarity, no_softmax)),
    ],
)
def test_one_computation(function: Callable[..., Tensor], expected: int) -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 16).unbind()
    with torch.no_grad(), Counting() as counting:
        function(q, k, v)
    assert counting.count.total == expected


def test_kinds_are_told_apart() -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 16).unbind()
    with torch.no_grad(), Counting() as counting:
        out = masked_fused(q, k, written(q, k, router(q, k, v)))
        written(out, k, v)
    assert (counting.count.fused, counting.count.written) == (1, 2)


def test_probabilities_that_two_products_read_are_one_computation() -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 16).unbind()
    with torch.no_grad(), Counting() as counting:
        probabilities = torch.softmax(q @ k.transpose(-1, -2), -1)
        probabilities @ v + probabilities @ k
    assert counting.count.total == 1
