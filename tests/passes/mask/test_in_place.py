"""In-place writes: masks mean what they held when they were read, and emission reads the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npu_compile.passes.mask.meaning import MaskAnalyser, MaskNotExpressible
from npu_compile.passes.mask.plan import Bound
from npu_compile.passes.site import ScoreShape
from npu_compile.passes.values import aten
from tests.passes.mask.tracing import Result, run, term, trace

B, N, Q, K = 2, 4, 3, 9
INF = float("inf")


def causal(start: Tensor) -> Tensor:
    return (torch.arange(K)[None] <= torch.arange(Q)[:, None] + start)[None, None]


def check(found: Result) -> None:
    (mask,) = found.masks
    keep = mask if mask.dtype == torch.bool else mask == 0
    rows = keep.any(-1, keepdim=True)
    assert torch.equal(found.keep, keep.expand(found.keep.shape))
    assert torch.equal(found.implied[:, None] & rows, keep.expand(B, 1, -1, -1))


def step(counter: Tensor, cache: Tensor, new: Tensor) -> Tensor:
    """A static cache's step: the counter grows after the mask was computed from it."""
    positions = torch.arange(Q) + counter
    mask = causal(counter)
    counter.add_(Q)
    cache.index_copy_(2, positions, new)
    return mask


def test_lengths_come_from_the_counter_before_it_grows() -> None:
    inputs = (torch.tensor(4), torch.zeros(B, N, K, 8), torch.ones(B, N, Q, 8))
    traced = trace(step, *inputs)
    found = run(traced, (B, N, Q, K))
    check(found)
    assert found.lengths == [4 + Q] and found.plan.sparse_mode == 3
    targets = [n.target for n in traced.graph.nodes]
    assert targets.index(aten.add_.Tensor) > targets.index(aten.reshape.default), "emitted before the write"
    assert aten.clone.default not in targets, "no copy is needed then"


def test_a_counter_that_is_the_length_is_copied() -> None:
    """k < counter: the length is the counter itself, which the program increases later on."""

    def mask(counter: Tensor) -> Tensor:
        keep = (torch.arange(K) < counter)[None, None, None].expand(B, 1, 1, K)
        counter.add_(2)
        return keep

    found = run(trace(mask, torch.tensor(4)), (B, N, 1, K))
    check(found)
    assert found.lengths == [4] and found.plan.atten_mask is None


def test_a_proved_length_that_is_the_counter_is_copied_too() -> None:
    """The write proves the bounds, so that nothing but the counter itself is left of the length."""

    def mask(counter: Tensor, cache: Tensor, new: Tensor) -> Tensor:
        keep = (torch.arange(K) < counter)[None, None, None].expand(B, 1, 1, K)
        cache.index_copy_(2, torch.arange(2) + counter, new)
        counter.add_(2)
        return keep

    found = run(trace(mask, torch.tensor(4), torch.zeros(B, N, K, 8), torch.ones(B, N, 2, 8)), (B, N, 1, K))
    check(found)
    assert found.lengths == [4] and isinstance(found.plan.lengths, Bound) and not found.plan.lengths.clamped


def test_a_length_made_of_two_tensors_on_either_side_of_a_write() -> None:
    def mask(counter: Tensor, more: Tensor) -> Tensor:
        distance = torch.arange(K) - counter
        counter.add_(3)
        extra = more.sum().long()
        return (distance < extra)[None, None, None].expand(B, 1, 1, K)

    traced = trace(mask, torch.tensor(4), torch.ones(2))
    found = run(traced, (B, N, 1, K))
    check(found)
    assert found.lengths == [6] and found.plan.atten_mask is None
    assert aten.clone.default in [n.target for n in traced.graph.nodes]


def test_two_values_of_one_counter_are_kept_apart() -> None:
    def mask(counter: Tensor) -> Tensor:
        before = torch.arange(K) >= counter - 2
        counter.add_(3)
        after = torch.arange(K) < counter
        return (before & after)[None, None, None].expand(B, 1, 1, K)

    found = run(trace(mask, torch.tensor(4)), (B, N, 1, K))
    check(found)
    assert found.implied[0, 0].nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


def test_values_read_through_an_old_view_are_not_traced_back() -> None:
    """``view`` was made before the write that ``view`` shows."""

    def mask(counter: Tensor) -> Tensor:
        view = counter.view(1)
        counter.add_(3)
        return (torch.arange(K) < view)[None, None, None].expand(B, 1, 1, K)

    found = run(trace(mask, torch.tensor(4)), (B, N, 1, K))
    check(found)
    assert found.lengths == [7]


def test_masks_built_in_place() -> None:
    def mask(padding: Tensor) -> Tensor:
        held = torch.full((Q, K), -INF).triu_(1)[None, None].repeat(B, 1, 1, 1)
        return held.masked_fill_(padding[:, None, None, :], -INF)

    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[1, 2:] = True
    found = run(trace(mask, padding), (B, N, Q, K))
    check(found)


def test_a_slice_written_in_place() -> None:
    """The base tensor is read after a write through a view of it."""

    def mask(padding: Tensor) -> Tensor:
        held = torch.zeros(B, 1, Q, K)
        held[:, :, :, 2:] = torch.where(padding[:, None, None, 2:], torch.zeros(()), -INF)
        return held.clone()

    padding = torch.rand(B, K, generator=torch.Generator().manual_seed(0)) > 0.4
    found = run(trace(mask, padding), (B, N, Q, K))
    assert found.meaning.bias != () and found.plan.atten_mask == "explicit"
    kept = found.masks[0] == 0
    assert torch.equal(found.implied[:, None], kept.expand(B, 1, Q, K))


def test_a_mask_written_to_after_its_definition() -> None:
    def mask(held: Tensor) -> Tensor:
        view = held[:, :, :, :4]
        view.logical_not_()
        return held

    traced = trace(mask, torch.rand(B, 1, Q, K) > 0.5)
    input_node = next(iter(traced.graph.nodes))
    analyser = MaskAnalyser(traced.graph)
    with pytest.raises(MaskNotExpressible, match="written to in place before it is read"):
        analyser.analyse([term(input_node)], ScoreShape(B, N, Q, K))
    first_reader = list(traced.graph.nodes)[1]
    meaning = analyser.analyse([term(input_node)], ScoreShape(B, N, Q, K), reader=first_reader)
    assert meaning.words == "explicit mask from input held_1"
