"""Which arguments a meaning becomes: one line per lowering rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npu_compile.passes.mask.plan import UNBOUNDED, Bound, FromMask
from npu_compile.passes.site import MaskTerm
from tests.passes.mask.tracing import Result, run, trace

B, N = 2, 4


def band(query: int, key: int, low: int | None, high: int | None) -> Tensor:
    """q + low <= k <= q + high."""
    distance = torch.arange(key)[None] - torch.arange(query)[:, None]
    keep = torch.ones(query, key, dtype=torch.bool)
    if low is not None:
        keep = keep & (distance >= low)
    if high is not None:
        keep = keep & (distance <= high)
    return keep[None, None].expand(B, 1, query, key)


def planned(query: int, key: int, low: int | None, high: int | None) -> Result:
    found = run(trace(lambda: band(query, key, low, high)), (B, N, query, key))
    assert torch.equal(found.implied[:, None], band(query, key, low, high).expand(B, 1, query, key))
    assert torch.equal(found.keep, band(query, key, low, high).expand(B, N, query, key))
    return found


ALL = UNBOUNDED
RULES = [
    # query, key, low, high -> mode, pre, next, mask, lengths
    pytest.param(5, 5, None, 0, (3, ALL, ALL, "causal", None), id="square causal"),
    pytest.param(5, 9, None, 4, (3, ALL, ALL, "causal", None), id="bottom right"),
    pytest.param(5, 9, None, 0, (2, ALL, ALL, "causal", [5]), id="top left, more keys"),
    pytest.param(9, 5, None, 0, (2, ALL, ALL, "causal", None), id="top left, more rows"),
    pytest.param(5, 9, None, 2, (3, ALL, ALL, "causal", [7]), id="part of the keys"),
    pytest.param(5, 9, None, 6, (4, ALL, 2, "causal", None), id="beyond the corner"),
    pytest.param(5, 9, None, -2, (3, ALL, ALL, "causal", [3]), id="first rows empty"),
    pytest.param(9, 5, None, -4, (3, ALL, ALL, "causal", None), id="bottom right, more rows"),
    pytest.param(5, 5, -2, 0, (4, 2, 0, "causal", None), id="window 3"),
    pytest.param(5, 9, 2, 4, (4, 2, 0, "causal", None), id="window 3, bottom right"),
    pytest.param(5, 9, 0, 2, (4, 2, 0, "causal", [7]), id="window 3, part of the keys"),
    pytest.param(7, 7, -2, 3, (4, 2, 3, "causal", None), id="two sides"),
    pytest.param(5, 9, -2, 6, (4, 6, 2, "causal", None), id="two sides, more keys"),
    pytest.param(5, 9, -1, None, (4, 5, ALL, "causal", None), id="no upper side"),
    pytest.param(5, 9, 0, None, (4, 4, ALL, "causal", None), id="from the diagonal on"),
    pytest.param(5, 9, None, None, (0, ALL, ALL, None, None), id="all"),
    pytest.param(5, 9, -4, 8, (0, ALL, ALL, None, None), id="a band that holds all"),
    pytest.param(1, 9, None, 4, (0, ALL, ALL, None, [5]), id="one row: a length"),
    pytest.param(1, 9, None, 8, (0, ALL, ALL, None, None), id="one row: all keys"),
    pytest.param(1, 9, 2, 4, (0, ALL, ALL, "explicit", [5]), id="one row: a window needs a mask"),
    pytest.param(1, 9, 0, 4, (0, ALL, ALL, None, [5]), id="one row: a window that starts at 0"),
]


@pytest.mark.parametrize(("query", "key", "low", "high", "expected"), RULES)
def test_band(query: int, key: int, low: int | None, high: int | None, expected: tuple[object, ...]) -> None:
    found = planned(query, key, low, high)
    plan = found.plan
    assert (plan.sparse_mode, plan.pre_tokens, plan.next_tokens, plan.atten_mask, found.lengths) == expected


@pytest.mark.parametrize(("query", "key"), [(4, 4), (4, 9), (9, 4)])
def test_sdpa_is_causal_is_aligned_at_the_top_left(query: int, key: int) -> None:
    traced = trace(lambda: torch.zeros(1, 1, 1, 1))
    found = run(traced, (B, N, query, key), [MaskTerm("causal")])
    assert torch.equal(found.implied[0], torch.ones(query, key, dtype=torch.bool).tril())
    assert found.plan.atten_mask == "causal" and found.plan.sparse_mode == (3 if query == key else 2)


def test_sdpa_is_causal_with_one_query() -> None:
    found = run(trace(lambda: torch.zeros(1, 1, 1, 1)), (B, N, 1, 7), [MaskTerm("causal")])
    assert found.plan.atten_mask is None and found.lengths == [1]


def test_lengths_per_request() -> None:
    lengths = torch.tensor([3, 7])
    found = run(trace(lambda n: (torch.arange(9) < n[:, None])[:, None, None, :], lengths), (B, N, 5, 9))
    assert found.plan.atten_mask is None and found.lengths == [3, 7] and found.plan.sparse_mode == 0


def test_lengths_outside_of_the_keys_are_cut_off() -> None:
    lengths = torch.tensor([-2, 12])
    found = run(trace(lambda n: (torch.arange(9) < n[:, None])[:, None, None, :], lengths), (B, N, 5, 9))
    assert found.lengths == [0, 9] and isinstance(found.plan.lengths, Bound) and found.plan.lengths.clamped


def test_lengths_with_top_left_causality() -> None:
    def mask(n: Tensor) -> Tensor:
        return (torch.arange(9) < n[:, None])[:, None, None, :] & band(5, 9, None, 0)

    found = run(trace(mask, torch.tensor([3, 7])), (B, N, 5, 9))
    assert (found.plan.sparse_mode, found.plan.atten_mask, found.lengths) == (2, "causal", [3, 7])
    assert torch.equal(found.implied[:, None], found.masks[0])


def test_lengths_with_a_window_need_a_mask() -> None:
    """The operator would count the window from each request's end."""

    def mask(n: Tensor) -> Tensor:
        return (torch.arange(9) < n[:, None])[:, None, None, :] & band(5, 9, 2, 4)

    found = run(trace(mask, torch.tensor([5, 9])), (B, N, 5, 9))
    assert found.plan.atten_mask == "explicit" and torch.equal(found.implied[:, None], found.masks[0])


def test_the_mean_over_all_values() -> None:
    """A finite fill, and a length that may be 0: no mask, the whole length, and a query of 0."""

    def mask(n: Tensor) -> Tensor:
        keep = (torch.arange(9) < n[:, None])[:, None, None, :]
        return torch.where(keep, torch.zeros(()), torch.finfo(torch.float32).min)

    found = run(trace(mask, torch.tensor([0, 7])), (B, N, 5, 9))
    assert found.plan.atten_mask is None and found.lengths == [9, 7]
    assert found.mean_rows is not None and found.mean_rows.flatten().tolist() == [True, False]


def test_an_opaque_mask_is_bounded_by_its_last_kept_key() -> None:
    keep = torch.zeros(B, 1, 5, 9, dtype=torch.bool)
    keep[0, 0, 1, 3] = keep[0, 0, 4, 0] = keep[1, 0, 0, 8] = True
    found = run(trace(lambda m: m.clone(), keep), (B, N, 5, 9))
    assert found.lengths == [4, 9] and isinstance(found.plan.lengths, FromMask)
    assert (found.plan.sparse_mode, found.plan.atten_mask) == (1, "explicit")


def test_a_mask_shared_by_all_requests_stays_one() -> None:
    found = run(trace(lambda m: m[None, None].expand(B, N, 5, 9), torch.rand(5, 9) > 0.5), (B, N, 5, 9))
    assert found.mask is not None and found.mask.shape == (1, 1, 5, 9)
    assert found.lengths is not None and len(found.lengths) == 1


def test_a_mask_without_heads() -> None:
    """Folded heads: (B * N, Q, K) masks belong to scores of B * N batch elements and one head."""
    keep = torch.rand(B * N, 5, 9, generator=torch.Generator().manual_seed(3)) > 0.5
    found = run(trace(lambda m: m.clone(), keep), (B * N, 1, 5, 9))
    assert found.mask is not None and torch.equal(~found.mask[:, 0], keep)
    assert torch.equal(found.keep[:, 0], keep)
