"""Attention sinks: a logit beside the scores whose probability is dropped again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from npu_compile.passes.recognise import recognise
from tests.passes.graphs import aten_graph, random

B, N, Q, K, D = 2, 3, 5, 17, 16
Tensor = torch.Tensor


def inputs() -> tuple[Tensor, ...]:
    return random(B, N, Q, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2), random(N, seed=3)


def column(sinks: Tensor) -> Tensor:
    return sinks.reshape(1, -1, 1, 1).expand(B, -1, Q, -1)


def joined(q: Tensor, k: Tensor, sinks: Tensor) -> Tensor:
    return torch.cat([(q @ k.mT) * 0.25, column(sinks)], dim=-1)


def gated(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """Granite's way: out * sigmoid(logsumexp - sink)."""
    scores = (q @ k.mT) * 0.25
    gate = (torch.logsumexp(scores, dim=-1) - sinks.view(1, -1, 1)).to(torch.float32).sigmoid()
    return (scores.softmax(-1) @ v) * gate.unsqueeze(-1).to(v.dtype)


def gate_of(scores: Tensor, sinks: Tensor) -> Tensor:
    return (scores.logsumexp(-1, keepdim=True) - sinks.view(1, -1, 1, 1)).sigmoid()


FOUND: dict[str, Callable[..., Tensor]] = {
    "plain": lambda q, k, v, s: joined(q, k, s).softmax(-1)[..., :-1] @ v,
    "minus the maximum": lambda q, k, v, s: (
        (x := joined(q, k, s)).sub(x.max(-1, keepdim=True).values).softmax(-1)[..., :-1] @ v
    ),
    "minus amax, detached": lambda q, k, v, s: (
        (x := joined(q, k, s)).sub(x.detach().amax(3, keepdim=True)).softmax(-1)[..., :-1] @ v
    ),
    "in float32": lambda q, k, v, s: (
        torch.softmax(joined(q, k, s).double(), -1, dtype=torch.float32)[..., 0:-1].to(v.dtype) @ v
    ),
    "behind V": gated,
    "behind V, on its left, the last axis kept": lambda q, k, v, s: (
        gate_of(x := (q @ k.mT) * 0.25, s) * (x.softmax(-1) @ v)
    ),
    "one for each row": lambda q, k, v, s: (
        torch.cat([(q @ k.mT) * 0.25, q[..., :1] * 2], -1).softmax(-1)[:, :, :, :K] @ v
    ),
}


@pytest.mark.parametrize("spelling", FOUND)
def test_spellings(spelling: str) -> None:
    found = recognise(aten_graph(FOUND[spelling], *inputs()).graph)
    assert not found.refusals
    (site,) = found.sites
    assert site.sink is not None
    assert (site.scores.key, site.scale) == (K, 0.25)


def test_a_maximum_subtracted_without_a_sink() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        scores = q @ k.mT
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1) @ v

    (site,) = recognise(aten_graph(attend, *inputs()).graph).sites
    assert site.sink is None


def with_ones(v: Tensor) -> Tensor:
    return torch.cat([v, v.new_ones(B, N, 1, D)], 2)


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a sink with a value": (lambda q, k, v, s: joined(q, k, s).softmax(-1) @ with_ones(v), "not dropped"),
    "the first key is dropped instead": (
        lambda q, k, v, s: joined(q, k, s).softmax(-1)[..., 1:] @ v,
        "changed by",
    ),
    "scaled together with the sink": (
        lambda q, k, v, s: (joined(q, k, s) * 2).softmax(-1)[..., :-1] @ v,
        "after a sink",
    ),
    "two sinks": (
        lambda q, k, v, s: torch.cat([joined(q, k, s), column(s)], -1).softmax(-1)[..., :-1] @ with_ones(v),
        "after a sink",
    ),
    "a key is dropped without a sink": (
        lambda q, k, v, s: ((q @ k.mT).softmax(-1)[..., :-1]) @ v[:, :, 1:],
        "changed by",
    ),
    "several columns beside the scores": (
        lambda q, k, v, s: torch.cat([q @ k.mT, q @ k.mT], -1).softmax(-1)[..., :K] @ v,
        "beside other scores",
    ),
    "the maximum is taken off before the sink": (
        lambda q, k, v, s: (
            torch.cat([(x := q @ k.mT) - x.amax(-1, keepdim=True), column(s)], -1).softmax(-1)[..., :-1] @ v
        ),
        "taken off the scores before a sink",
    ),
    "soft-capped and behind V": (
        lambda q, k, v, s: gate_of(x := (q @ k.mT).tanh() * 30, s) * (x.softmax(-1) @ v),
        "soft-capped (tanh) and joined by a sink",
    ),
    "two sinks, one behind V": (
        lambda q, k, v, s: gate_of(x := joined(q, k, s), s) * (x.softmax(-1)[..., :-1] @ v),
        "two sinks",
    ),
    "the maximum is taken off before a sink behind V": (
        lambda q, k, v, s: gate_of(x := (y := q @ k.mT) - y.amax(-1, keepdim=True), s) * (x.softmax(-1) @ v),
        "taken off the scores before a sink",
    ),
    "probabilities set to 0 before a sink behind V": (
        lambda q, k, v, s: (
            gate_of(x := (q @ k.mT).masked_fill(m := torch.ones(Q, K).triu(1) > 0, -1e9), s)
            * (x.softmax(-1).masked_fill(m, 0.0) @ v)
        ),
        "set to 0 where scores were masked, before a sink",
    ),
    "the gate scales something else": (
        lambda q, k, v, s: gate_of(x := q @ k.mT, s) * q + x.softmax(-1) @ v,
        "scales something else than the product with V",
    ),
    "the gate scales the result of other rows": (
        lambda q, k, v, s: gate_of(x := q[:, :, :N] @ k.mT, s).transpose(1, 2) * (x.softmax(-1) @ v),
        "also used by logsumexp",
    ),
    "the product with V is returned besides": (
        lambda q, k, v, s: torch.stack(
            [y := (x := q @ k.mT).softmax(-1) @ v, gate_of(x, s) * y],
        ),
        "the product with V is also used by stack",
    ),
    "the product with V is written to through a view": (
        lambda q, k, v, s: gate_of(x := q @ k.mT, s) * ((y := x.softmax(-1) @ v), y[:, :, 0].zero_())[0],
        "the product with V is also used by select",
    ),
    "the sum over queries": (
        lambda q, k, v, s: (
            (x := q @ k.mT).softmax(-1) @ v * (x.logsumexp(-2) - s.view(1, -1, 1)).sigmoid()[..., :1, None]
        ),
        "also used by logsumexp",
    ),
    "a second reader of the log-sum-exp": (
        lambda q, k, v, s: (
            ((x := q @ k.mT).softmax(-1) @ v) * ((y := x.logsumexp(-1, True)) - 1).sigmoid() * y
        ),
        "also used by logsumexp",
    ),
    "the maximum over queries": (
        lambda q, k, v, s: ((x := q @ k.mT) - x.amax(-2, keepdim=True)).softmax(-1) @ v,
        "also used by amax",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    function, expected = REFUSED[name]
    found = recognise(aten_graph(function, *inputs()).graph)
    assert not found.sites
    (refusal,) = found.refusals
    assert expected in refusal.reason


def test_a_sink_that_is_overwritten_is_not_read_later() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        scores = joined(q, k, s)
        s.zero_()
        return scores.softmax(-1)[..., :-1] @ v

    (refusal,) = recognise(aten_graph(attend, *inputs()).graph).refusals
    assert "sink" in refusal.reason and "overwritten" in refusal.reason
