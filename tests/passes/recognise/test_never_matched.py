"""What is not attention, or not one that fused operators compute: untouched, and the same numbers.

Each function is compiled as a whole. Where a softmax lies between two products the report must say why it
was left; where there is none, it must say nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from tests.passes.graphs import aten_graph, random, text

B, N, S, D = 2, 3, 17, 16
Tensor = torch.Tensor


def tensors() -> tuple[Tensor, ...]:
    return random(B, N, S, D), random(B, N, S, D, seed=1), random(B, N, S, D, seed=2)


def left(function: Callable[..., Any], *weights: Tensor) -> list[str]:
    """The reasons for what was left; the graph is unchanged and computes what the program does."""
    ensure_graph_ops()
    inputs = (*tensors(), *weights)
    module = aten_graph(function, *inputs)
    before = text(module)
    outcomes = lower(module, recognise(module.graph), Target.CPU)
    assert not any(outcome.lowered for outcome in outcomes)
    assert text(module) == before
    torch.testing.assert_close(module(*copy.deepcopy(inputs)), function(*inputs), rtol=0, atol=0)
    return [str(outcome.reason) for outcome in outcomes]


def scores(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT) / math.sqrt(D)


def alibi(q: Tensor) -> Tensor:
    distance = torch.arange(S)[None, :] - torch.arange(S)[:, None]
    return (-distance.abs() * 0.25).to(q.dtype)


def returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    p = scores(q, k).softmax(-1)
    return p @ v, p


def reused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = scores(q, k).softmax(-1)
    return p @ v + p @ k


def two_softmaxes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Differential attention: two maps of probabilities meet V together."""
    return (scores(q, k).softmax(-1) - 0.5 * scores(k, q).softmax(-1)) @ v


def two_masks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One mask for the scores, another for the probabilities."""
    upper, lower_ = torch.ones(S, S).triu(1) > 0, torch.ones(S, S).tril(-9) > 0
    return scores(q, k).masked_fill(upper, -math.inf).softmax(-1).masked_fill(lower_, 0.0) @ v


def refilled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask is written to between its two uses."""
    mask = torch.ones(S, S).triu(1) > 0
    p = scores(q, k).masked_fill(mask, torch.finfo(q.dtype).min).softmax(-1)
    mask[:, 0] = True
    return p.masked_fill(mask, 0.0) @ v


def queries_and_keys_mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softmax over the scores of several queries at once."""
    p = scores(q[:, :, :4], k[:, :, :8]).reshape(B, N, 2, 16).softmax(-1).reshape(B, N, 4, 8)
    return p @ v[:, :, :8]


LISTED: dict[str, tuple[Callable[..., Any], str]] = {
    "probabilities returned": (returned, "more than once"),
    "probabilities reused": (reused, "more than once"),
    "differences of probabilities": (two_softmaxes, "changed by"),
    "two different masks": (two_masks, "were not masked"),
    "a mask written to between": (refilled, "were not masked"),
    "queries and keys in one softmax": (queries_and_keys_mixed, "another order"),
    "softmax over the queries": (lambda q, k, v: scores(q, k).softmax(-2) @ v, "another order"),
    "softmax over the heads": (lambda q, k, v: scores(q, k).softmax(1) @ v, "another order"),
    "softmax over the batch": (lambda q, k, v: scores(q, k).softmax(0) @ v, "another order"),
    "the product of the transposed probabilities": (
        lambda q, k, v: scores(q, k).softmax(-1).mT @ v,
        "another order",
    ),
    "a scale of each key from data": (
        lambda q, k, v: (scores(q, k) * k.norm(dim=-1)[:, :, None]).softmax(-1) @ v,
        "multiplied or divided",
    ),
    "a divisor from data": (
        lambda q, k, v: (q @ k.mT / q.norm(dim=-1, keepdim=True)).softmax(-1) @ v,
        "multiplied or divided",
    ),
    "a soft cap from data, under a mask": (
        lambda q, k, v: (
            torch.where(alibi(q) > -2, torch.tanh(scores(q, k) / k[0, 0, 0, 0]), -1e9).softmax(-1) @ v
        ),
        "multiplied or divided",
    ),
    "a scale and a mask by their long names": (
        lambda q, k, v: (
            torch.multiply(torch.subtract(q @ k.mT, alibi(q)), k.norm(dim=-1)[:, :, None]).softmax(-1) @ v
        ),
        "multiply, which is not understood",
    ),
    "a mask multiplied": (
        lambda q, k, v: (scores(q, k) * torch.ones(S, S).tril()).softmax(-1) @ v,
        "multiplied or divided",
    ),
    "probabilities masked by a product": (
        lambda q, k, v: (scores(q, k).softmax(-1) * torch.ones(S, S).tril()) @ v,
        "changed by",
    ),
    "ALiBi after the softmax": (lambda q, k, v: (scores(q, k).softmax(-1) + alibi(q)) @ v, "changed by"),
    "heads mixed before the softmax": (
        lambda q, k, v: torch.einsum("bhqk,hg->bgqk", scores(q, k), q[0, :, 0, :N]).softmax(-1) @ v,
        "same batch and heads",
    ),
    "heads mixed after the softmax": (
        lambda q, k, v: torch.einsum("bhqk,hg->bgqk", scores(q, k).softmax(-1), q[0, :, 0, :N]) @ v,
        "another order",
    ),
    "the logarithm of probabilities": (lambda q, k, v: scores(q, k).log_softmax(-1) @ v, "logarithms"),
    "renormalised probabilities": (
        lambda q, k, v: (p := scores(q, k).softmax(-1)).div(p.sum(-1, keepdim=True) + 1e-6) @ v,
        "more than once",
    ),
    "rectified scores": (lambda q, k, v: scores(q, k).relu().softmax(-1) @ v, "non-linear"),
    "squared scores": (lambda q, k, v: scores(q, k).pow(2).softmax(-1) @ v, "non-linear"),
    "sorted scores": (lambda q, k, v: torch.exp(scores(q, k)).softmax(-1) @ v, "non-linear"),
    "a temperature below zero after a mask": (
        lambda q, k, v: ((scores(q, k) + alibi(q)) * -1).softmax(-1) @ v,
        "sign",
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_look_alikes_are_left_with_a_reason(name: str) -> None:
    function, expected = LISTED[name]
    reasons = left(function)
    assert reasons and all(expected in reason for reason in reasons)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmaxes of queries and of keys, each before any product."""
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


def state_space(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Mamba-2 in its dual form: decays instead of a softmax."""
    decay = torch.exp(-torch.cumsum(F.softplus(v[..., 0]), -1))
    weights = (q @ k.mT) * (decay[..., None] / decay[..., None, :]).tril()
    return weights @ v


def sigmoid_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(scores(q, k)) @ v


def classifier(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Probabilities of similarity, with no values."""
    return (q @ k.mT).softmax(-1)


def gate(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(v, -1) * (q @ k.mT @ v)


UNLISTED = (
    linear_attention,
    efficient_attention,
    state_space,
    sigmoid_attention,
    classifier,
    gate,
)


@pytest.mark.parametrize("function", UNLISTED, ids=lambda function: function.__name__)
def test_other_mixers_are_not_attention(function: Callable[..., Any]) -> None:
    assert left(function) == []


def test_a_router_is_not_attention() -> None:
    """The product above the softmax is with a trained weight, the one below with what the experts made."""

    def experts(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        tokens = q[:, 0]
        gates = (tokens @ weight).softmax(-1)
        made = torch.stack([tokens * (i + 1) for i in range(N)], -2)
        return (gates.unsqueeze(-2) @ made).squeeze(-2)

    assert left(experts, torch.nn.Parameter(random(D, N, seed=7))) == []


def test_keys_permuted_between_the_products_are_followed() -> None:
    """Probabilities that meet other keys' values are attention with those values, and computed as such."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = scores(q, k[:, :, :16]).softmax(-1)
        turned = p.view(B, N, S, 8, 2).transpose(3, 4).reshape(B, N, S, 16)
        return turned @ v[:, :, :16]

    ensure_graph_ops()
    q, k, v = tensors()
    module = aten_graph(attend, q, k, v)
    (outcome,) = lower(module, recognise(module.graph), Target.CPU)
    assert outcome.lowered
    order = [i * 2 + j for j in range(2) for i in range(8)]
    wanted = torch.zeros(B, N, S, D, dtype=torch.float64)
    weights = torch.einsum("bnqd,bnkd->bnqk", q.double(), k[:, :, :16].double()).div(4).softmax(-1)
    for position, key in enumerate(order):
        wanted += weights[..., key, None] * v[:, :, position, None].double()
    torch.testing.assert_close(module(q, k, v).double(), wanted, atol=1e-5, rtol=0)
