"""Sites with an attention sink against the float64 definition: exp(sink) joins the denominator alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch

from npu_compile.kernels.targets import Target
from tests.passes.graphs import aten_graph, random
from tests.passes.lower.lowering import lowered

B, N, KV, K, D = 2, 4, 2, 17, 64
Tensor = torch.Tensor
LOWEST = torch.finfo(torch.float32).min


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """The way GPT-OSS writes it."""
    k, v = (x[:, :, None].expand(B, KV, 2, *x.shape[2:]).reshape(B, N, *x.shape[2:]) for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * 0.125 + mask
    joined = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(B, -1, q.shape[2], -1)], dim=-1)
    joined = joined - joined.max(dim=-1, keepdim=True).values
    return torch.softmax(joined, dim=-1, dtype=joined.dtype)[..., :-1] @ v


def attend_causally(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    rows = torch.arange(q.shape[2])
    mask = torch.where(rows[:, None] >= rows, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    return attend(q, k, v, mask, sinks)


def attend_gated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """The way Granite writes it."""
    k, v = (x[:, :, None].expand(B, KV, 2, *x.shape[2:]).reshape(B, N, *x.shape[2:]) for x in (k, v))
    scores = (q @ k.transpose(2, 3)) * 0.125 + mask
    gate = (torch.logsumexp(scores, dim=-1) - sinks.view(1, -1, 1)).to(torch.float32).sigmoid()
    result = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
    return result * gate.unsqueeze(-1).to(result.dtype)


def attend_gated_causally(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    rows = torch.arange(q.shape[2])
    mask = torch.where(rows[:, None] >= rows, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    return attend_gated(q, k, v, mask, sinks)


def oracle(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    q, k, v, mask, sinks = (x.double() for x in (q, k, v, mask, sinks))
    out = torch.empty(B, N, q.shape[2], D, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            own = mask.expand(B, N, q.shape[2], K)[b, n]
            weights = torch.exp(torch.einsum("qd,kd->qk", q[b, n], k[b, n // 2]) * 0.125 + own)
            total = weights.sum(-1, keepdim=True) + torch.exp(sinks[n])
            out[b, n] = torch.einsum("qk,kd->qd", weights / total, v[b, n // 2])
    return out


def operands(queries: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    q, k, v = random(B, N, queries, D), random(B, KV, K, D, seed=1), random(B, KV, K, D, seed=2)
    return q.to(dtype), k.to(dtype), v.to(dtype)


SINKS = torch.tensor([-1.0, 0.5, 2.0, 4.0])


@pytest.mark.parametrize("spelling", [attend_causally, attend_gated_causally])
def test_a_prompt_goes_packed_with_a_learnable_sink(spelling: Callable[..., Tensor]) -> None:
    inputs = operands(K)
    module, outcome = lowered(spelling, *inputs, SINKS)
    assert (outcome.op, outcome.input_layout) == ("npu_fused_infer_attention_score_v2", "TND")
    assert outcome.sparse_mode == 3
    mask = torch.full((K, K), -math.inf).triu(1)
    wanted = oracle(*inputs, mask, SINKS)
    torch.testing.assert_close(module(*inputs, SINKS).double(), wanted, atol=1e-5, rtol=0)


def masks() -> dict[str, Tensor]:
    """Additive masks: with rows of nothing but the smallest number, of -inf, and different between heads."""
    padded = torch.zeros(B, 1, 5, K)
    padded[0, :, :, 9:] = LOWEST
    empty = padded.clone()
    empty[1, :, 3] = LOWEST
    infinite = torch.zeros(B, 1, 5, K)
    infinite[0, :, 2:4] = -math.inf
    by_head = random(B, N, 5, K, seed=4)
    by_head[0, 2, 1] = -math.inf
    by_head[1, :, 3] = LOWEST
    by_head[1, :, 4, 3:] = LOWEST
    return {"padded": padded, "empty rows": empty, "-inf rows": infinite, "by head": by_head}


@pytest.mark.parametrize("kind", masks())
def test_other_masks_have_the_sink_join_by_the_log_sum_exp(kind: str) -> None:
    """A row with nothing to attend is 0: the sink takes all of it."""
    inputs, mask = operands(5), masks()[kind]
    module, outcome = lowered(attend, *inputs, mask, SINKS)
    assert outcome.op == "npu_fused_infer_attention_score"
    assert any("log-sum-exp" in note for note in outcome.notes)
    got, wanted = module(*inputs, mask, SINKS).double(), oracle(*inputs, mask, SINKS)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", masks())
def test_a_sink_behind_v_leaves_nan_where_a_row_is_minus_infinity(kind: str) -> None:
    """Elsewhere it is the same sink: a row of the smallest number is 0."""
    inputs, mask = operands(5), masks()[kind]
    module, outcome = lowered(attend_gated, *inputs, mask, SINKS)
    assert outcome.op == "npu_fused_infer_attention_score"
    void = (mask == -math.inf).all(-1, keepdim=True).expand(B, N, 5, 1)
    wanted = oracle(*inputs, mask, SINKS).masked_fill(void, math.nan)
    assert bool(void.any()) == (kind in ("-inf rows", "by head"))
    got = module(*inputs, mask, SINKS).double()
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0, equal_nan=True)
    eager = attend_gated(*inputs, mask, SINKS)
    assert torch.equal(eager.isnan(), wanted.isnan())


def test_bounds_that_leave_nothing_of_a_row_behind_v_give_nan() -> None:
    def attend_first(q: Tensor, k: Tensor, v: Tensor, n: Tensor, sinks: Tensor) -> Tensor:
        keep = torch.arange(K) < n.view(B, 1, 1, 1)
        mask = torch.where(keep, 0.0, -math.inf)
        return attend_gated(q, k, v, mask, sinks)

    inputs, lengths = operands(5), torch.tensor([9, 0])
    module, outcome = lowered(attend_first, *inputs, lengths, SINKS)
    assert outcome.op is not None
    mask = torch.full((B, 1, 1, K), -math.inf)
    mask[0, ..., :9] = 0
    wanted = oracle(*inputs, mask, SINKS)
    wanted[1] = math.nan
    got = module(*inputs, lengths, SINKS).double()
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("spelling", [attend, attend_gated])
def test_a_sink_of_minus_infinity_is_none(spelling: Callable[..., Tensor]) -> None:
    """A row with nothing to attend is 0 and not NaN, which the next layer would hand on."""
    sinks = torch.tensor([-1.0, -math.inf, 2.0, -math.inf])

    def attend_kept(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, s: Tensor) -> Tensor:
        return spelling(q, k, v, torch.where(keep, 0.0, LOWEST), s)

    inputs = operands(5)
    keep = torch.ones(B, 1, 5, K, dtype=torch.bool)
    keep[0, :, :, 9:] = False
    keep[1, :, 2] = False
    module, outcome = lowered(attend_kept, *inputs, keep, sinks)
    assert outcome.op == "npu_fused_infer_attention_score"
    got = module(*inputs, keep, sinks).double()
    wanted = oracle(*inputs, torch.where(keep, 0.0, -math.inf), sinks)
    wanted[1, :, 2] = 0
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_one_token() -> None:
    inputs, mask = operands(1), torch.zeros(B, 1, 1, K)
    module, _ = lowered(attend, *inputs, mask, SINKS)
    wanted = oracle(*inputs, mask, SINKS)
    torch.testing.assert_close(module(*inputs, mask, SINKS).double(), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("queries", [5, K])
def test_bfloat16_is_as_close_as_the_program(queries: int) -> None:
    inputs, mask = operands(queries, torch.bfloat16), torch.zeros(B, 1, queries, K, dtype=torch.bfloat16)
    sinks = SINKS.bfloat16()
    module, _ = lowered(attend, *inputs, mask, sinks)
    wanted = oracle(*inputs, mask, sinks)
    plain = (attend(*inputs, mask, sinks).double() - wanted).abs().max()
    assert (module(*inputs, mask, sinks).double() - wanted).abs().max() <= 2 * plain


def test_devices_take_a_packed_bfloat16_sink_and_nothing_else() -> None:
    """Packed queries of D 64 need a key head for each query head, so this one joins by the log-sum-exp."""

    def wide(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return attend_causally(*(torch.cat([x, x], -1) for x in (q, k, v)), sinks)

    inputs = operands(K, torch.bfloat16)
    for function, sinks, op in (
        (wide, SINKS.bfloat16(), "npu_fused_infer_attention_score_v2"),
        (attend_causally, SINKS.bfloat16(), "npu_fused_infer_attention_score"),
    ):
        _, outcome = lowered(function, *inputs, sinks, target=Target.ASCEND910B)
        assert outcome.op == op, outcome.reason


def test_a_sink_that_depends_on_the_row_is_not_packed() -> None:
    def attend_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT) * 0.125
        return torch.cat([scores, q[..., :1] * 2], -1).softmax(-1)[..., :-1] @ v

    q, k, v = random(B, N, K, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2)
    plain = aten_graph(attend_rows, q, k, v)
    module, outcome = lowered(attend_rows, *copy.deepcopy((q, k, v)))
    assert outcome.op == "npu_fused_infer_attention_score"
    torch.testing.assert_close(module(q, k, v), plain(q, k, v), atol=1e-5, rtol=0)
