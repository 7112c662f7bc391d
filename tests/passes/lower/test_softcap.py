"""Sites with soft-capped scores against their definition in float64: the cap, then the mask."""

from __future__ import annotations

import math

import pytest
import torch

from npu_compile.kernels.targets import Target
from tests.passes.graphs import random
from tests.passes.lower.lowering import lowered

B, N, KV, K, D = 2, 4, 2, 17, 54
SCALE, CAP = 0.3, 5.0
LOWEST = torch.finfo(torch.float32).min
Tensor = torch.Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The way Gemma 2 writes it."""
    k, v = (x[:, :, None].expand(B, KV, 2, *x.shape[2:]).reshape(B, N, *x.shape[2:]) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = torch.tanh(scores / CAP) * CAP + mask
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows = torch.arange(q.shape[2])
    mask = torch.where(rows[:, None] >= rows, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    return attend(q, k, v, mask)


def attend_up_to(q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
    """A step on a static cache: every request has keys up to its own position."""
    seen = torch.arange(k.shape[2]) <= position[:, None, None, None]
    return attend(q, k, v, torch.where(seen, 0.0, -math.inf).to(q.dtype))


def oracle(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q, k, v, mask = (x.double() for x in (q, k, v, mask))
    out = torch.empty(B, N, q.shape[2], D, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            scores = torch.einsum("qd,kd->qk", q[b, n], k[b, n // 2]) * SCALE
            scores = CAP * torch.tanh(scores / CAP) + mask.expand(B, N, q.shape[2], K)[b, n]
            out[b, n] = torch.einsum("qk,kd->qd", torch.softmax(scores, -1), v[b, n // 2])
    return out


def operands(queries: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    q, k, v = random(B, N, queries, D), random(B, KV, K, D, seed=1), random(B, KV, K, D, seed=2)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("target", [Target.CPU, Target.ASCEND910B])
def test_a_causal_prompt(target: Target) -> None:
    inputs = operands(K, torch.bfloat16 if target is Target.ASCEND910B else torch.float32)
    module, outcome = lowered(attend_causally, *inputs, target=target)
    assert (outcome.op, outcome.sparse_mode, outcome.num_key_value_heads) == ("softcap_attention", 3, KV)
    assert outcome.notes == ("of torch's own operators: FIA has no soft cap",)
    if target is Target.CPU:
        wanted = oracle(*inputs, torch.full((K, K), -math.inf).triu(1))
        torch.testing.assert_close(module(*inputs).double(), wanted, atol=1e-5, rtol=0)


def test_a_step_reads_its_lengths_on_the_device_and_no_mask() -> None:
    inputs, position = operands(1), torch.tensor([16, 4])
    module, outcome = lowered(attend_up_to, *inputs, position)
    assert outcome.op == "softcap_attention" and outcome.lengths
    (call,) = (node for node in module.graph.nodes if "softcap" in str(node.target))
    assert "atten_mask" not in call.kwargs
    assert "host_lengths" not in str(module.graph)
    mask = torch.zeros(B, 1, 1, K)
    mask[1, ..., 5:] = -math.inf
    spoilt = inputs[1].clone()
    spoilt[1, :, 5:] = math.nan
    got = module(inputs[0], spoilt, inputs[2], position).double()
    torch.testing.assert_close(got, oracle(*inputs, mask), atol=1e-5, rtol=0)


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
    by_head[1, :, 4, 3:] = LOWEST
    return {"padded": padded, "empty rows": empty, "-inf rows": infinite, "by head": by_head}


@pytest.mark.parametrize("kind", masks())
def test_masks_that_are_inputs(kind: str) -> None:
    """Rows of the smallest number average V, up to what the scores still add to it; rows of -inf are NaN."""
    inputs, mask = operands(5), masks()[kind]
    module, outcome = lowered(attend, *inputs, mask)
    assert outcome.op == "softcap_attention"
    got = module(*inputs, mask).double()
    torch.testing.assert_close(got, attend(*inputs, mask).double(), atol=1e-5, rtol=0, equal_nan=True)
    if kind != "empty rows":
        torch.testing.assert_close(got, oracle(*inputs, mask), atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_the_program(queries: int, dtype: torch.dtype) -> None:
    inputs, mask = operands(queries, dtype), torch.zeros(B, 1, queries, K, dtype=dtype)
    module, _ = lowered(attend, *inputs, mask)
    wanted = oracle(*inputs, mask)
    plain = (attend(*inputs, mask).double() - wanted).abs().max()
    assert (module(*inputs, mask).double() - wanted).abs().max() <= 1.1 * plain


def test_an_inner_scale_of_the_query_counts_inside_of_the_cap() -> None:
    """VideoPrism caps without dividing first: scale and cap are what they are at the product."""

    def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.tanh((q * 0.5) @ k.mT * 0.2) * 50.0
        return scores.softmax(-1) @ v

    q, k, v = (random(B, N, s, D, seed=s) for s in (5, K, K))
    module, _ = lowered(capped, q, k, v)
    (call,) = (node for node in module.graph.nodes if "softcap" in str(node.target))
    assert call.kwargs["softcap"] == 50.0
    assert call.kwargs["scale"] == pytest.approx(50.0 * 0.2)
    wanted = torch.softmax(torch.tanh(q.double() @ k.double().mT * 0.1) * 50, -1) @ v.double()
    torch.testing.assert_close(module(q, k, v).double(), wanted, atol=1e-4, rtol=0)
