"""Floats added to the scores whose values only the run knows are classified in the graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from npu_compile.passes.mask.meaning import MaskAnalyser
from npu_compile.passes.site import MaskTerm, ScoreShape
from tests.passes.mask.tracing import Result, program, run, term, trace

INF = float("inf")
B, N, Q, K = 2, 3, 5, 7
SIZES = (B, N, Q, K)
MINIMUM = torch.finfo(torch.float32).min


TABLE = torch.randn(20, N, generator=torch.Generator().manual_seed(9))


def position_bias(table: Tensor) -> Tensor:
    """T5's relative position bias, (1, N, Q, K): made of weights, so it drops nothing."""
    distance = torch.arange(K)[None] - torch.arange(Q)[:, None]
    return F.embedding(distance + 10, table).permute(2, 0, 1)[None]


def data(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SIZES, generator=generator) * 4, torch.randn(B, N, K, 3, generator=generator)


def check(found: Result, seed: int = 0) -> Result:
    scores, values = data(seed)
    (mask,) = found.masks
    for hand_written in (False, True):
        expected = program(scores, mask, values, sdpa=not hand_written)
        result = found.attention(scores, values, hand_written)
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6, equal_nan=True)
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    heads=st.sampled_from((1, N)),
    rows=st.sampled_from((1, Q)),
    levels=st.sets(st.sampled_from((0.0, -0.5, 3.0, -1e4, -1e9, -1e20, MINIMUM, -INF)), min_size=1),
    lost=st.integers(0, 2),
)
@example(seed=0, heads=N, rows=Q, levels={0.0, MINIMUM, -INF}, lost=0)
def test_any_values(seed: int, heads: int, rows: int, levels: set[float], lost: int) -> None:
    """Every mix of values, with some rows of nothing but the lowest."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.tensor(sorted(levels))
    mask = choices[torch.randint(len(choices), (B, heads, rows, K), generator=generator)]
    mask[0, :, :lost] = choices[0]
    found = run(trace(lambda m: m.clone(), mask), SIZES)
    check(found, seed)
    if heads == 1:
        assert found.lengths is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_length_bound_of_a_float_mask(dtype: torch.dtype) -> None:
    mask = torch.full((B, 1, Q, K), torch.finfo(dtype).min, dtype=dtype)
    mask[0, ..., :3], mask[1, ..., :6] = 0, 0
    scores = torch.float64 if dtype == torch.float64 else torch.float32
    found = run(trace(lambda m: m.clone(), mask), SIZES, dtype=scores)
    assert found.lengths == [3, 6] and found.plan.sparse_mode == 1


def test_a_bias_per_head_needs_no_mask() -> None:
    found = check(run(trace(lambda table: position_bias(table) * 1.5, TABLE), SIZES))
    assert found.plan.sparse_mode == 0 and found.plan.atten_mask is None and found.plan.lengths is None


def test_a_position_bias_and_a_mask_in_one_sum() -> None:
    """T5 adds its mask to its position bias once, before the layers."""

    def mask(table: Tensor, padding: Tensor) -> Tensor:
        return position_bias(table) + torch.where(padding[:, None, None, :], torch.zeros(()), MINIMUM)

    padding = torch.ones(B, K, dtype=torch.bool)
    padding[0, 4:] = False
    padding[1] = False
    found = check(run(trace(mask, TABLE, padding), SIZES))
    assert found.meaning.words == "padding mask input padding_1, bias from unsqueeze_2"
    assert found.lengths == [4, K] and found.plan.empty_rows == "mean"


def test_each_layer_its_own_copy_of_a_masked_bias() -> None:
    """SDPA gets a contiguous copy in every layer: the layers still share the analysis and what is emitted."""

    def masks(table: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        keep = padding[:, None, None, :].expand(B, 1, Q, K)
        total = torch.where(keep, position_bias(table), MINIMUM)
        return total.contiguous(), total.expand(B, N, Q, K).clone()

    padding = torch.ones(B, K, dtype=torch.bool)
    padding[0, 4:] = False
    traced = trace(masks, TABLE, padding)
    analyser, scores = MaskAnalyser(traced.graph), ScoreShape(*SIZES)
    first, second = (analyser.analyse([term(mask)], scores) for mask in traced.masks)
    assert first is second and first.words.startswith("padding mask input padding_1, bias from unsqueeze")


def test_a_position_bias_with_causality_keeps_the_causal_mode() -> None:
    def mask(table: Tensor) -> Tensor:
        causal = (torch.arange(K)[None] <= torch.arange(Q)[:, None] + K - Q)[None, None]
        return position_bias(table) + torch.where(causal, torch.zeros(()), MINIMUM)

    found = check(run(trace(mask, TABLE), SIZES))
    assert (found.plan.sparse_mode, found.plan.atten_mask) == (3, "causal") and found.bias is not None


@pytest.mark.parametrize("lowest", [-INF, MINIMUM, -1e12])
def test_a_bias_that_may_drop_keys_is_read_at_run_time(lowest: float) -> None:
    """The same sums, with a table or a constant that holds the lowest numbers: those rows are special."""
    table = TABLE.clone()
    table[10:13, 1] = lowest
    mask = torch.rand(B, 1, 1, K, generator=torch.Generator().manual_seed(8)) > 0.5

    def from_input(bias: Tensor, keep: Tensor) -> Tensor:
        return bias * 1.0 + torch.where(keep, torch.zeros(()), MINIMUM)

    check(run(trace(from_input, position_bias(table), mask), SIZES))

    def by_condition(weights: Tensor, keep: Tensor) -> Tensor:
        bias = position_bias(weights)
        return torch.where(bias > 0.3, bias, lowest) + torch.where(keep, torch.zeros(()), MINIMUM)

    found = check(run(trace(by_condition, TABLE, mask), SIZES))
    assert found.meaning.by_head


@pytest.mark.parametrize("fill", [-INF, MINIMUM])
@pytest.mark.parametrize("form", ["masked_fill", "where", "where scalar"])
def test_a_bias_with_masked_places(fill: float, form: str) -> None:
    """ALiBi with the causal mask filled in (Falcon, Bloom, MPT)."""

    def mask(slopes: Tensor, padding: Tensor) -> Tensor:
        keep = (torch.arange(K)[None] <= torch.arange(Q)[:, None])[None, None] & padding[:, None, None, :]
        bias = slopes[None, :, None, None] * torch.arange(K)
        if form == "masked_fill":
            return torch.masked_fill(bias, keep == False, fill)  # noqa: E712
        return torch.where(keep, bias, fill) if form == "where" else torch.where(~keep, fill, bias)

    padding = torch.ones(B, K, dtype=torch.bool)
    padding[0, :2] = False
    found = check(run(trace(mask, torch.rand(N), padding), SIZES))
    assert found.meaning.words.startswith("causal, padding mask")
    # The first two rows keep nothing: a mean takes all keys, 0 takes none.
    assert found.lengths == [Q if fill == -INF else K, Q]


def test_masks_that_differ_between_heads() -> None:
    keep = torch.rand(B, N, Q, K, generator=torch.Generator().manual_seed(1)) > 0.5
    keep[0, 1, 2] = False
    found = check(run(trace(lambda m: m.clone(), keep), SIZES))
    assert found.plan.patch_void_rows and found.void_rows is not None
    assert found.void_rows.nonzero().tolist() == [[0, 1, 2, 0]]
    assert found.plan.atten_mask is None


@pytest.mark.parametrize("fill", [-INF, MINIMUM])
def test_a_mask_per_head_on_top_of_padding(fill: float) -> None:
    """Rows that one head, or the padding, or only both together leave nothing."""
    generator = torch.Generator().manual_seed(6)
    heads = torch.rand(B, N, Q, K, generator=generator) > 0.5
    padding = torch.rand(B, 1, 1, K, generator=generator) > 0.5
    heads[0, 1, 2], heads[1, 0, 3] = ~padding[0, 0, 0], False

    def mask(h: Tensor, p: Tensor) -> Tensor:
        return torch.zeros(h.shape).masked_fill(~h, fill) + torch.zeros(p.shape).masked_fill(~p, MINIMUM)

    found = check(run(trace(mask, heads, padding), SIZES))
    assert found.plan.patch_void_rows and found.lengths is not None


def test_a_mask_per_head_on_top_of_a_causal_one() -> None:
    """Row 0 sees key 0 only, which one head masks."""
    keep = torch.ones(B, N, Q, K, dtype=torch.bool)
    keep[1, 2, 0, 0] = False
    traced = trace(lambda m: m.clone(), keep)
    found = run(traced, SIZES, [MaskTerm("causal"), term(traced.masks[0])])
    causal = torch.ones(Q, K, dtype=torch.bool).tril()
    scores, values = data(0)
    expected = program(scores, keep & causal, values)
    torch.testing.assert_close(found.attention(scores, values), expected, rtol=0, atol=2e-6)
    assert (expected[1, 2, 0] == 0).all()


def test_terms_apply_in_program_order() -> None:
    """scores + bias, then where(mask, scores, min), then + another bias."""
    first, second = torch.randn(B, 1, Q, K), torch.randn(B, 1, 1, K)
    keep = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(2)) > 0.5
    keep[0, 0, 3] = False
    traced = trace(lambda a, m, b: (a.clone(), m.clone(), b.clone()), first, keep, second)
    a, m, b = traced.masks
    found = run(traced, SIZES, [term(a), term(m, "keep", MINIMUM), term(b)])
    scores, values = data(5)
    total = torch.where(keep, scores + first, MINIMUM) + second
    expected = torch.softmax(total.double(), -1) @ values.double()
    torch.testing.assert_close(found.attention(scores, values), expected, rtol=0, atol=2e-6)


def test_float16_scores() -> None:
    """An empty row of float16 scores is uniform: adding a score below 16 to -65504 changes nothing."""
    keep = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(4)) > 0.4
    keep[0, 0, 1] = False
    mask = torch.zeros(keep.shape, dtype=torch.float16).masked_fill(~keep, torch.finfo(torch.float16).min)
    found = run(trace(lambda m: m.clone(), mask), SIZES, dtype=torch.float16)
    scores, values = data(0)
    expected = program(scores.half(), mask, values)
    torch.testing.assert_close(found.attention(scores.half(), values), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(expected[0, :, 1], values[0].double().mean(1))
