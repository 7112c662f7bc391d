"""Attention written by hand in its many spellings, and look-alikes that must stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import AttentionSite
from tests.passes.graphs import aten_graph, random

B, N, Q, K, D = 2, 3, 5, 17, 16
Tensor = torch.Tensor


def qkv(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return (
        random(B, N, Q, D, dtype=dtype),
        random(B, N, K, D, seed=1, dtype=dtype),
        random(B, N, K, D, seed=2, dtype=dtype),
    )


def found(function: Callable[..., Any], *inputs: Any) -> AttentionSite:
    result = recognise(aten_graph(function, *inputs).graph)
    assert not result.refusals, result.refusals[0].reason
    (site,) = result.sites
    return site


def reason(function: Callable[..., Any], *inputs: Any) -> str:
    result = recognise(aten_graph(function, *inputs).graph)
    assert not result.sites
    (refusal,) = result.refusals
    return refusal.reason


def nothing(function: Callable[..., Any], *inputs: Any) -> bool:
    result = recognise(aten_graph(function, *inputs).graph)
    return not result.sites and not result.refusals


def flat(x: Tensor) -> Tensor:
    return x.reshape(B * N, x.shape[2], D)


SCALES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mul after": lambda q, k, v: ((q @ k.transpose(2, 3)) * 0.3).softmax(-1) @ v,
    "mul after, number first": lambda q, k, v: (0.3 * (q @ k.mT)).softmax(-1) @ v,
    "div after": lambda q, k, v: ((q @ k.transpose(-1, -2)) / (1 / 0.3)).softmax(-1) @ v,
    "in baddbmm": lambda q, k, v: (
        torch.baddbmm(q.new_zeros(B * N, Q, K), flat(q), flat(k).transpose(1, 2), beta=0, alpha=0.3).softmax(
            -1
        )
        @ flat(v)
    ),
    "in place": lambda q, k, v: (q @ k.transpose(2, 3)).mul_(0.3).softmax(-1) @ v,
    "bmm": lambda q, k, v: torch.bmm((torch.bmm(flat(q), flat(k).mT) * 0.3).softmax(-1), flat(v)),
    "einsum": lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.3).softmax(-1), v
    ),
    "einsum to sequence first": lambda q, k, v: torch.einsum(
        "bhqk,bhkd->bqhd", (torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.3).softmax(-1), v
    ),
    "functional, float32": lambda q, k, v: (
        torch.nn.functional.softmax((q @ k.transpose(2, 3)) * 0.3, dim=3, dtype=torch.float32).to(q.dtype) @ v
    ),
    "dead dropout": lambda q, k, v: (
        torch.nn.functional.dropout(((q @ k.transpose(2, 3)) * 0.3).softmax(-1), 0.1, training=False) @ v
    ),
    "dropout of nothing": lambda q, k, v: (
        torch.nn.functional.dropout(((q @ k.transpose(2, 3)) * 0.3).softmax(-1), 0.0, training=True) @ v
    ),
}


@pytest.mark.parametrize("spelling", SCALES)
def test_scale_and_product_spellings(spelling: str) -> None:
    site = found(SCALES[spelling], *qkv())
    assert math.isclose(site.scale, 0.3)
    assert site.head_dim == D
    assert (site.scores.query, site.scores.key) == (Q, K)
    assert site.scores.batch * site.scores.heads == B * N


@pytest.mark.parametrize("side", ["q", "k"])
def test_scale_before_the_product_stays_in_the_operand(side: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = (q * 0.3, k) if side == "q" else (q, k / 2)
        return (q @ k.transpose(2, 3)).softmax(-1) @ v

    site = found(attend, *qkv())
    assert site.scale == 1.0
    assert (site.query if side == "q" else site.key).node.op == "call_function"


def test_tensor_scale_goes_into_the_query() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        return ((q @ k.transpose(2, 3)) * s).softmax(-1) @ v

    site = found(attend, *qkv(), random(N, 1, 1))
    assert [target for target, _ in site.query.views] == [torch.ops.aten.mul.Tensor]


MASKS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, float]] = {
    "added": (lambda s, m: s + m.to(s.dtype), "add", -math.inf),
    "added in place": (lambda s, m: s.add_(m.to(s.dtype)), "add", -math.inf),
    "added, mask first": (lambda s, m: m.to(s.dtype) + s, "add", -math.inf),
    "filled": (lambda s, m: s.masked_fill(m, -math.inf), "drop", -math.inf),
    "selected": (lambda s, m: torch.where(m, s, -1e30), "keep", -1e30),
    "selected from a full": (
        lambda s, m: torch.where(m, s, torch.full([], torch.finfo(s.dtype).min)),
        "keep",
        torch.finfo(torch.float32).min,
    ),
    "selected, dropped first": (lambda s, m: torch.where(m, -math.inf, s), "drop", -math.inf),
}


@pytest.mark.parametrize("spelling", MASKS)
def test_mask_spellings(spelling: str) -> None:
    apply, kind, fill = MASKS[spelling]
    mask = torch.ones(B, 1, Q, K, dtype=torch.bool)
    site = found(lambda q, k, v, m: apply((q @ k.mT) * 0.5, m).softmax(-1) @ v, *qkv(), mask)
    (term,) = site.masks
    assert (term.kind, term.fill) == (kind, fill)


def test_two_masks_keep_their_order() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, causal: Tensor, padding: Tensor) -> Tensor:
        scores = torch.where(causal, q @ k.mT, torch.finfo(q.dtype).min)
        return (scores + padding).softmax(-1) @ v

    site = found(attend, *qkv(), torch.ones(1, 1, Q, K, dtype=torch.bool), random(B, 1, 1, K))
    assert [term.kind for term in site.masks] == ["keep", "add"]


def test_flat_heads_with_a_wide_mask_are_taken_apart() -> None:
    """OPT and BART: bmm over batch x heads, the mask added in four dimensions."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.bmm(flat(q), flat(k).transpose(1, 2)).view(B, N, Q, K) + mask
        return torch.bmm(scores.view(B * N, Q, K).softmax(-1), flat(v))

    site = found(attend, *qkv(), random(B, 1, Q, K))
    assert (site.scores.batch, site.scores.heads) == (B, N)
    assert site.query.node.op == "placeholder"
    assert site.query.views == ()


def test_float32_product_of_half_operands_is_seen_through() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q.float() @ k.float().transpose(2, 3)) * 0.25
        return scores.softmax(-1).to(v.dtype) @ v

    site = found(attend, *qkv(torch.bfloat16))
    assert site.query.node.op == "placeholder"


def test_bits_read_as_another_dtype_are_other_numbers() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.view(torch.bfloat16) for x in (q, k, v))
        return (q @ k.mT).softmax(-1) @ v

    site = found(attend, *qkv(torch.float16))
    assert [read.node.op for read in (site.query, site.key, site.value)] == ["call_function"] * 3


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "soft cap after a mask": (
        lambda q, k, v: (torch.tanh((q @ k.mT + torch.ones(Q, K).cumsum(0)) / 30) * 30).softmax(-1) @ v,
        "soft-capped (tanh) after a mask was added",
    ),
    "the maximum taken off before a soft cap": (
        lambda q, k, v: torch.tanh((x := q @ k.mT) - x.amax(-1, keepdim=True)).softmax(-1) @ v,
        "taken off the scores before a soft cap",
    ),
    "the maximum taken off before scores become a number": (
        lambda q, k, v: (
            ((x := q @ k.mT) - x.amax(-1, keepdim=True))
            .masked_fill(torch.ones(Q, K).triu(1) > 0, -3.0)
            .softmax(-1)
            @ v
        ),
        "before some of them become -3.0",
    ),
    "two soft caps": (
        lambda q, k, v: torch.tanh(torch.tanh(q @ k.mT)).softmax(-1) @ v,
        "soft-capped (tanh) twice",
    ),
    "negative soft cap": (
        lambda q, k, v: (torch.tanh(q @ k.mT) * -2).softmax(-1) @ v,
        "a number that is not positive",
    ),
    "soft cap scaled by a tensor": (
        lambda q, k, v: (torch.tanh(q @ k.mT) * q.amax()).softmax(-1) @ v,
        "a tensor after they were soft-capped",
    ),
    "soft cap and a sink": (
        lambda q, k, v: torch.cat([torch.tanh(q @ k.mT), q[..., :1]], -1).softmax(-1)[..., :-1] @ v,
        "joined by a sink",
    ),
    "a sink in a soft cap": (
        lambda q, k, v: torch.cat([q @ k.mT, q[..., :1]], -1).tanh().softmax(-1)[..., :-1] @ v,
        "after a sink has joined",
    ),
    "probabilities changed": (lambda q, k, v: ((q @ k.mT).softmax(-1) * 2) @ v, "changed by"),
    "dropout": (
        lambda q, k, v: torch.nn.functional.dropout((q @ k.mT).softmax(-1), 0.5, training=True) @ v,
        "dropout",
    ),
    "mask multiplied": (
        lambda q, k, v: ((q @ k.mT) * torch.tril(q.new_ones(Q, K))).softmax(-1) @ v,
        "multiplied",
    ),
    "fill from data": (
        lambda q, k, v: (q @ k.mT).masked_fill(torch.tril(q.new_ones(Q, K)) == 0, q.amin()).softmax(-1) @ v,
        "not known when compiling",
    ),
    "einsum over the queries": (
        lambda q, k, v: torch.einsum("bhqk,bhqd->bhkd", (q @ k.mT).softmax(-1), q),
        "another order",
    ),
    "batch and heads regrouped under a mask": (
        lambda q, k, v: (
            ((q @ k.mT).view(N, B, Q, K) + q.new_ones(1, B, 1, K)).softmax(-1).view(B, N, Q, K) @ v
        ),
        "regrouped",
    ),
    "scale per flat head": (
        lambda q, k, v: (
            (flat(q) @ flat(k).mT * q.new_ones(B * N, 1, 1).cumsum(0)).view(B, N, Q, K).softmax(-1) @ v
        ),
        "in one dimension",
    ),
    "filled to more rows": (
        lambda q, k, v: (q[:, :, :1] @ k.mT).masked_fill(torch.ones(Q, K).triu(1) > 0, -1e30).softmax(-1) @ v,
        "broadcast",
    ),
    "scaled to more rows": (
        lambda q, k, v: ((q[:, :, :1] @ k.mT) * torch.ones(Q, 1)).softmax(-1) @ v,
        "broadcast",
    ),
    "filled from a tensor": (
        lambda q, k, v: torch.where(k[:, :, :Q, :1] > 0, q @ k.mT, k.mT[:, :, :Q] * 0).softmax(-1) @ v,
        "not known when compiling",
    ),
    "softmax over the queries' axis": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "another order"),
    "sign changed after the mask": (
        lambda q, k, v: ((q @ k.mT + torch.tril(q.new_ones(Q, K))) * -2).softmax(-1) @ v,
        "sign",
    ),
    "clamped": (lambda q, k, v: (q @ k.mT).clamp(-5, 5).softmax(-1) @ v, "clamped"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name: str) -> None:
    function, expected = REFUSED[name]
    assert expected in reason(function, *qkv())


def test_a_floor_raises_the_fill_of_masks_before_it() -> None:
    """Rows of nothing but -inf become uniform rows of the smallest number, not NaN."""
    minimum = torch.finfo(torch.float32).min

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(mask, -math.inf)
        return torch.max(scores, torch.tensor(minimum)).softmax(-1) @ v

    (term,) = found(attend, *qkv(), torch.ones(Q, K, dtype=torch.bool)).masks
    assert (term.kind, term.fill) == ("drop", minimum)


def test_a_constant_that_is_written_to_is_not_a_number() -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        factor = torch.ones(Q, K)
        factor[:, 3:] = 0
        return ((q @ k.mT) * factor).softmax(-1) @ v

    def filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fill = torch.full((), -math.inf)
        fill.view(1).fill_(0.0)
        return (q @ k.mT).masked_fill(torch.ones(Q, K).triu(1) > 0, fill).softmax(-1) @ v

    assert "multiplied" in reason(scaled, *qkv())
    assert "not known when compiling" in reason(filled, *qkv())


def test_a_scale_overwritten_after_its_use_is_not_read_later() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        scores = (q @ k.mT) * scale
        scale.zero_()
        return scores.softmax(-1) @ v

    assert "overwritten" in reason(attend, *qkv(), random(N, 1, 1))


def test_an_einsum_that_swaps_heads_and_queries_both_times() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / 3
        return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), v)

    q, k, v = (x.transpose(1, 2) for x in qkv())
    site = found(attend, q, k, v)
    assert (site.scores.batch, site.scores.heads, site.scores.query, site.scores.key) == (B, N, Q, K)


def test_returned_probabilities_are_kept() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = (q @ k.mT).softmax(-1)
        return p @ v, p

    assert "more than once" in reason(attend, *qkv())


def test_scores_with_another_reader_are_kept() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = q @ k.mT
        return s.softmax(-1) @ v, s.amax()

    assert "also used" in reason(attend, *qkv())


LOOK_ALIKES: dict[str, Callable[..., Any]] = {
    "router": lambda q, k, v: q.softmax(-1) @ v.mT[..., :D, :].new_ones(B, N, D, D),
    "no product above": lambda q, k, v: (k + 1).softmax(-1) @ v.mT,
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_other_softmaxes_are_no_sites(name: str) -> None:
    assert nothing(LOOK_ALIKES[name], *qkv())


def test_a_mask_of_bools_is_added_as_numbers() -> None:
    """Grounding DINO adds a bool mask: True counts 1."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT + mask).softmax(-1) @ v

    (term,) = found(attend, *qkv(), torch.ones(B, 1, Q, K, dtype=torch.bool)).masks
    assert (term.kind, [target for target, _ in term.views]) == ("add", [torch.ops.aten.to.dtype])
