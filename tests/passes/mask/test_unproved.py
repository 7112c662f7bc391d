"""What can't be proved stays explicit or is refused; on each input here a wrong proof gives wrong results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.passes.mask.meaning import MaskNotExpressible
from npu_compile.passes.mask.plan import FromMask
from npu_compile.passes.site import ScoreShape
from tests.passes.mask.tracing import Result, compiled, program, run, term, trace

INF = float("inf")
B, N, Q, K = 2, 4, 5, 9
PAST = K - Q
SIZES = (B, N, Q, K)
FLOAT32, FLOAT16, BFLOAT16 = (torch.finfo(t).min for t in (torch.float32, torch.float16, torch.bfloat16))


def triangle(offset: int | Tensor = K - Q) -> Tensor:
    return (torch.arange(K)[None] <= torch.arange(Q)[:, None] + offset)[None, None].expand(B, 1, Q, K)


def check(
    function: Callable[..., Tensor], *inputs: Any, again: tuple[Any, ...] = (), scale: float = 1.0
) -> Result:
    """Trace on ``inputs``, run on ``again`` if given: the attention is the program's."""
    found = run(trace(function, *inputs), SIZES, inputs=again or inputs)
    torch.manual_seed(0)
    scores, values = torch.randn(SIZES) * scale, torch.randn(B, N, K, 3)
    expected = program(scores, found.masks[0], values)
    torch.testing.assert_close(found.attention(scores, values), expected, rtol=0, atol=2e-6)
    return found


@pytest.mark.parametrize("fill", [-1e4, -1e9, -88.0, -1.0])
def test_a_large_negative_number_is_a_bias(fill: float) -> None:
    """Scores that are large enough show through -1e4: as a mask, the result would be another one."""
    found = run(trace(lambda: torch.where(triangle(), torch.zeros(()), fill)), SIZES)
    scores, values = torch.full(SIZES, 0.0), torch.randn(B, N, K, 3)
    scores[:, :, 0, K - Q + 1] = -fill + 1
    expected = program(scores, found.masks[0], values)
    torch.testing.assert_close(found.attention(scores, values), expected, rtol=0, atol=2e-6)
    assert found.bias is not None and found.meaning.keep.atoms == ()
    masked = program(scores.masked_fill(~triangle(), -INF), torch.zeros(1, 1, 1, 1), values)
    assert (expected - masked).abs().max() > 1e-2, "the input tells a bias from a mask"


def test_a_number_no_score_reaches_is_minus_infinity() -> None:
    found = check(lambda: torch.where(triangle(), torch.zeros(()), -1e30), scale=1e3)
    assert found.bias is None and found.plan.sparse_mode == 3


@pytest.mark.parametrize("fill", [-1e4, -1e9, 0.0])
def test_scores_replaced_by_a_number_are_refused(fill: float) -> None:
    traced = trace(lambda: triangle().clone())
    with pytest.raises(MaskNotExpressible, match=re.escape(f"masked scores become {fill:g}")):
        run(traced, SIZES, [term(traced.masks[0], "keep", fill)])


@pytest.mark.parametrize("kind", ["keep", "drop"])
def test_scores_replaced_by_the_minimum_are_masked(kind: str) -> None:
    traced = trace(lambda: triangle(2) if kind == "keep" else ~triangle(2))
    found = run(traced, SIZES, [term(traced.masks[0], kind, FLOAT32)])
    assert torch.equal(found.keep[:, :1], triangle(2)) and found.plan.sparse_mode == 3
    assert found.meaning.dropped == "finite"


def test_an_integer_padding_mask_times_the_minimum_is_a_bias() -> None:
    """(1 - mask) * min is two-valued only for 0 and 1: a 2 turns it into the largest float."""
    mask = torch.ones(B, K, dtype=torch.int64)
    mask[0, 6:] = 0

    def extended(m: Tensor) -> Tensor:
        return (1.0 - m[:, None, None, :].to(torch.float32)) * FLOAT32

    found = check(extended, mask)
    assert found.bias is not None and found.lengths == [6, K]
    halves = mask.clone()
    halves[:, 2] = 1 - 2  # a program's own convention: its key gets 2 * min = -inf
    check(extended, mask, again=(halves,))


def test_a_bool_padding_mask_times_the_minimum_is_a_mask() -> None:
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 6:] = False
    found = check(lambda m: (1.0 - m[:, None, None, :].to(torch.float32)) * FLOAT32, mask)
    assert found.bias is None and found.lengths == [6, K] and found.meaning.words.startswith("padding mask")


def test_zero_times_minus_infinity_is_not_a_mask() -> None:
    """0 * -inf is NaN where the program meant to keep: the program's NaN must stay."""
    keep = torch.ones(B, 1, 1, K, dtype=torch.bool)
    keep[0, ..., 6:] = False
    found = run(trace(lambda m: (1.0 - m.to(torch.float32)) * -INF, keep), SIZES)
    assert found.bias is not None and found.masks[0].isnan().any()


def test_float_inputs_are_never_taken_for_masks() -> None:
    """The trace sees a clean 0 / min mask; the next call brings a bias."""
    clean = torch.where(triangle(), torch.zeros(()), FLOAT32)
    found = check(lambda m: m.clone(), clean)
    assert found.bias is not None and isinstance(found.plan.lengths, FromMask)
    check(lambda m: m.clone(), clean, again=(torch.randn(B, 1, Q, K),))


def test_bool_inputs_stay_explicit() -> None:
    """A causal example must not become a causal mode."""
    found = check(lambda m: m.clone(), triangle().clone(), again=(torch.rand(B, 1, Q, K) > 0.4,))
    assert found.plan.atten_mask == "explicit" and found.meaning.words == "explicit mask from input m_1"


def test_a_causal_buffer_is_an_input() -> None:
    """A buffer can be replaced between calls: it is kept as a mask, read anew in every run."""
    buffer = torch.ones(K, K, dtype=torch.bool).tril()[None, None]
    found = check(lambda b: b[:, :, K - Q : K, :K], buffer, again=(torch.rand(1, 1, K, K) > 0.4,))
    assert found.plan.atten_mask == "explicit" and "input b_1" in found.meaning.words


def test_data_decides() -> None:
    """A condition on data that happens to be causal for the example."""
    positions = torch.arange(K).float()
    found = check(lambda p: (p[None] <= p[K - Q :, None])[None, None], positions, again=(torch.randn(K),))
    assert found.plan.atten_mask == "explicit"


@pytest.mark.parametrize("offset", [-3, 0, 2, K - Q, K])
def test_a_held_offset_is_not_specialised(offset: int) -> None:
    """Traced with one offset, run with others; nothing proves that it is within the keys."""
    found = check(lambda t: triangle(t), torch.tensor(1), again=(torch.tensor(offset),))
    assert found.plan.atten_mask == "explicit" and found.meaning.maybe_empty_rows


def test_a_narrow_minimum_in_wide_scores() -> None:
    """float16's minimum leaves the scores of an empty float32 row as they are, so it isn't uniform."""
    padding = torch.ones(B, K, dtype=torch.bool)
    padding[0, :3] = False

    def mask(p: Tensor) -> Tensor:
        keep = triangle(0) & p[:, None, None, :]
        return torch.where(keep, torch.zeros((), dtype=torch.float16), FLOAT16)

    found = run(trace(mask, padding), SIZES)
    scores, values = torch.randn(SIZES) * 3, torch.randn(B, N, K, 3)
    expected = program(scores, found.masks[0], values)
    torch.testing.assert_close(found.attention(scores, values), expected, rtol=0, atol=2e-2)
    uniform = values.double().mean(2)[0, :, None].expand(N, 3, 3)
    assert (expected[0, :, :3] - uniform).abs().max() > 0.1, "the empty rows are not uniform"
    assert found.meaning.at_run_time


def test_a_wide_minimum_narrowed_becomes_minus_infinity() -> None:
    """float32's minimum in float16 is -inf: an empty row is then 0 under SDPA, not a mean."""
    padding = torch.zeros(B, K, dtype=torch.bool)
    padding[0, 2:] = True

    def mask(p: Tensor) -> Tensor:
        return torch.where(p[:, None, None, :], torch.zeros(()), FLOAT32).to(torch.float16)

    found = check(mask, padding)
    assert found.meaning.dropped == "inf" and found.plan.empty_rows == "zero" and found.lengths == [K, 0]


def test_a_sum_of_two_finite_masks_overflows() -> None:
    """min + min is -inf: in an empty row only the places that one mask alone drops share the weight."""
    padding = torch.ones(B, 1, 1, K, dtype=torch.bool)
    padding[0, ..., :2] = False

    def mask(p: Tensor) -> Tensor:
        zero = torch.zeros(())
        return torch.where(triangle(0), zero, FLOAT32) + torch.where(p, zero, FLOAT32)

    found = check(mask, padding)
    assert found.meaning.at_run_time and found.bias is None and found.mean_rows is not None
    assert found.mean_rows[0, 0, :, 0].tolist() == [True, True, False, False, False]


def test_a_sum_cut_off_at_the_minimum_does_not() -> None:
    padding = torch.ones(B, 1, 1, K, dtype=torch.bool)
    padding[0, ..., :2] = False

    def mask(p: Tensor) -> Tensor:
        zero = torch.zeros(())
        total = torch.where(triangle(0), zero, FLOAT32) + torch.where(p, zero, FLOAT32)
        return torch.clamp(total, min=FLOAT32)

    found = check(mask, padding)
    assert not found.meaning.at_run_time and found.plan.empty_rows == "mean"


def test_mixed_fills_are_told_apart_at_run_time() -> None:
    """A row masked by -inf in part and by the minimum elsewhere is uniform over the latter."""
    padding = torch.ones(B, 1, 1, K, dtype=torch.bool)
    padding[0, ..., :3] = False

    def mask(p: Tensor) -> Tensor:
        return torch.where(triangle(0), torch.where(p, torch.zeros(()), FLOAT32), -INF)

    found = check(mask, padding)
    assert found.meaning.at_run_time


def test_no_keys() -> None:
    with pytest.raises(MaskNotExpressible, match="there are no keys"):
        run(trace(lambda m: m.clone(), torch.ones(B, 1, Q, 0, dtype=torch.bool)), (B, N, Q, 0))


def test_narrow_integers_wrap() -> None:
    """128 is -128 as int8, and 0 - 1 is 255 as uint8."""
    sizes = (B, N, 1, 200)
    found = run(trace(lambda: (torch.arange(200).to(torch.int8) <= 100)[None, None, None]), sizes)
    assert torch.equal(found.implied[:, None], found.masks[0].expand(B, 1, 1, 200))
    padding = torch.rand(B, 200, generator=torch.Generator().manual_seed(0)) > 0.5
    masked = trace(lambda p: ((p.to(torch.uint8) - 1) == 255)[:, None, None], padding)
    found = run(masked, sizes)
    assert torch.equal(found.implied, ~padding[:, None])
    assert torch.equal(found.keep, ~padding[:, None, None].expand(sizes))


def test_the_first_difference_counts_too() -> None:
    """Positions that don't start where the prepended value says are a block of their own."""

    def mask() -> Tensor:
        positions = (torch.arange(K) + 5)[None].expand(B, K)
        blocks = (torch.diff(positions, prepend=torch.zeros(B, 1, dtype=torch.int64)) != 1).cumsum(-1)
        return (blocks[:, PAST:, None] == blocks[:, None, :])[:, None] & (blocks >= 1)[:, None, None]

    found = run(trace(mask), SIZES)
    assert torch.equal(found.implied[:, None], found.masks[0])
    assert torch.equal(found.keep, found.masks[0].expand(SIZES))


def test_one_row_or_more() -> None:
    """The operator ignores causality for a single row: rows that the run counts need an explicit mask."""

    def mask(x: Tensor) -> Tensor:
        rows = x.nonzero().shape[0]
        return (torch.arange(K)[None] <= torch.arange(rows)[:, None])[None, None]

    for count in (1, 3):
        x = torch.arange(6) < count
        traced = trace(mask, x, symbolic=True)
        shape = traced.masks[0].meta["val"].shape
        found = run(traced, (1, N, count, K), shape=ScoreShape(1, N, shape[2], K))
        assert torch.equal(found.implied[:, None], found.masks[0])


def test_tensors_of_the_module_are_not_read() -> None:
    """Only numbers that the program wrote down can't change; a tensor the module holds can."""
    traced = trace(lambda m, h: torch.where(m, 0.0, h), torch.rand(B, 1, Q, K) > 0.3, torch.tensor(-INF))
    held = list(traced.graph.nodes)[1]
    traced.module.register_buffer("held", torch.tensor(-INF))
    with traced.graph.inserting_after(held):
        attribute = traced.graph.get_attr("held")
    attribute.meta.update(held.meta)
    held.replace_all_uses_with(attribute)
    assert run(traced, SIZES).bias is not None


def test_constants_of_the_program_are_read_and_tensors_it_holds_are_not() -> None:
    held = torch.tensor(-INF)

    def written_down(m: Tensor) -> Tensor:
        return torch.where(m, torch.tensor(0.0), torch.tensor(-INF)) + torch.zeros(B, 1, Q, K)

    def from_outside(m: Tensor) -> Tensor:
        return torch.where(m, 0.0, held) + torch.zeros(B, 1, Q, K)

    keep = torch.rand(B, 1, Q, K) > 0.3
    assert run(compiled(written_down, keep), SIZES).bias is None
    assert run(compiled(from_outside, keep), SIZES).bias is not None
