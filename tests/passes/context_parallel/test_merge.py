"""Merging partial attention against softmax over the union, and its treatment of empty parts."""

from __future__ import annotations

import math
import random

import pytest
import torch

from npu_compile.passes.context_parallel.merge import Lse, Partial, merge

EMPTY = (float("inf"), float("-inf"), float("nan"), -3.4028234663852886e38)


def parts_of(scores, values, cuts):
    """float64 attention of each piece of the keys as float32 partials, and that of all keys."""
    pieces = []
    for s, v in zip(scores.tensor_split(cuts, -1), values.tensor_split(cuts, 0), strict=True):
        if s.shape[-1] == 0:
            rows, heads = s.shape[:2]
            lse = torch.full((rows, heads), random.Random(len(pieces)).choice(EMPTY))
            pieces.append(Partial.sanitised(torch.full((rows, heads, v.shape[-1]), float("nan")), Lse(lse)))
        else:
            out = torch.einsum("rnk,kd->rnd", s.softmax(-1), v)
            pieces.append(Partial(out.float(), Lse(s.logsumexp(-1).float())))
    return pieces, torch.einsum("rnk,kd->rnd", scores.softmax(-1), values), scores.logsumexp(-1)


def random_case(seed, parts=5):
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    scores = torch.randn(3, 2, 23, generator=generator, dtype=torch.float64) * 4
    values = torch.randn(23, 8, generator=generator, dtype=torch.float64)
    cuts = tuple(sorted(rng.randint(0, 23) for _ in range(parts - 1)))
    return parts_of(scores, values, cuts)


def test_any_order_and_grouping_gives_the_attention_over_all_keys():
    for seed in range(40):
        pieces, out, lse = random_case(seed)
        rng = random.Random(seed)
        while len(pieces) > 1:
            rng.shuffle(pieces)
            take = rng.randint(2, len(pieces))
            pieces = [*pieces[take:], merge(pieces[:take])]
        assert (pieces[0].out - out).abs().max() <= 1e-6
        assert (pieces[0].lse.values - lse).abs().max() <= 2e-6


def test_more_parts_than_one_operator_call_takes():
    pieces, out, _ = random_case(3, parts=40)
    assert (merge(pieces).out - out).abs().max() <= 1e-6


@pytest.mark.parametrize("empty", EMPTY)
def test_rows_that_are_empty_everywhere_are_zero(empty):
    part = Partial.sanitised(torch.full((2, 3, 8), float("nan")), Lse(torch.full((2, 3), empty)))
    merged = merge([part, part, part])
    assert torch.equal(merged.out, torch.zeros(2, 3, 8))
    assert torch.equal(merged.lse.values, torch.full((2, 3), float("-inf")))


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_part_changes_nothing(empty):
    full = Partial(torch.randn(2, 3, 8), Lse(torch.tensor([[-70.0, 0.0, 90.0]] * 2)))
    hole = Partial.sanitised(torch.full((2, 3, 8), float("nan")), Lse(torch.full((2, 3), empty)))
    merged = merge([hole, full])
    assert torch.equal(merged.out, full.out) and torch.equal(merged.lse.values, full.lse.values)
    assert torch.equal(hole.out, torch.zeros(2, 3, 8))


def test_the_base_of_the_logarithm_is_part_of_the_value():
    one = Partial(torch.ones(1, 1, 8), Lse(torch.tensor([[math.log(3.0)]])))
    other = Partial(torch.zeros(1, 1, 8), Lse(torch.tensor([[0.0]]), base="2"))
    merged = merge([one, other])
    assert torch.allclose(merged.out, torch.full((1, 1, 8), 0.75))
    assert torch.allclose(merged.lse.values, torch.tensor([[math.log(4.0)]]))
