"""Floats that are added to the scores of one query token: a column beside the rope part of its keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.targets import Target
from tests.passes.graphs import random
from tests.passes.mla.lowering import FIA, FIA_V2, calls, lowered, products, run
from tests.passes.mla.spellings import LATENT, NOPE, ROPE, SCALE, VALUE, B, N, Q, S, inputs
from tests.passes.mla.test_masks import masked

LOWEST = torch.finfo(torch.float32).min


def defined(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """float64, one head and request at a time; ``bias`` (B or 1, N or 1, Q, S)."""
    query, latent, rope, weight, bias = (t.double() for t in (query, latent, rope, weight, bias))
    batch, heads, queries, _ = query.shape
    rows, bias = weight.view(heads, NOPE + VALUE, LATENT), bias.expand(batch, heads, queries, -1)
    out = torch.zeros(batch, heads, queries, VALUE, dtype=torch.float64)
    for b in range(batch):
        for n in range(heads):
            key = torch.cat([latent[b] @ rows[n, :NOPE].T, rope[b]], -1)
            scores = query[b, n] @ key.T * SCALE + bias[b, n]
            out[b, n] = scores.softmax(-1) @ (latent[b] @ rows[n, NOPE:].T)
    return out


@pytest.mark.parametrize("requests", [1, B])
def test_a_bias_of_one_query_token_goes_with_its_keys(requests: int) -> None:
    bias = 3 * random(requests, 1, 1, S, seed=8, dtype=torch.float64)
    tensors = (*inputs(torch.float64, 1), bias)
    module, (outcome,) = lowered(masked, *tensors, choice="absorb")
    (call,) = calls(module, FIA_V2)
    assert "pse_shift" not in call.kwargs and "atten_mask" not in call.kwargs
    assert call.kwargs["key_rope"].meta["val"].shape[-1] == ROPE + 1
    assert products(module, S) == [] and outcome.notes == ("absorb: asked for",)
    torch.testing.assert_close(run(module, *tensors), defined(*tensors), rtol=0, atol=1e-10)


def written_by_hand(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What transformers' eager attention makes of a mask that it is given."""
    per_head = torch.nn.functional.linear(latent, weight).unflatten(-1, [-1, NOPE + VALUE]).transpose(1, 2)
    key_nope, value = per_head.split([NOPE, VALUE], -1)
    key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
    scores = torch.matmul(query, key.transpose(2, 3)) * SCALE + bias
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(query.dtype), value)


def test_an_additive_mask_that_is_an_input_leaves_keys_out() -> None:
    """NaN in latents that it hides doesn't reach the result; a row without keys is the mean of all values."""
    query, latent, rope, weight = inputs(queries=1)
    bias = torch.zeros(B, 1, 1, S)
    bias[0, ..., S - 6 :] = LOWEST
    bias[0, ..., :2] = LOWEST
    bias[1] = LOWEST
    wanted = defined(query, latent, rope, weight, bias)
    latent[0, :2], latent[0, S - 6 :] = math.nan, math.nan
    tensors = (query, latent, rope, weight, bias)
    module, (outcome,) = lowered(written_by_hand, *tensors, choice="absorb")
    assert outcome.op == "npu_fused_infer_attention_score_v2" and products(module, S) == []
    torch.testing.assert_close(run(module, *tensors).double(), wanted, rtol=0, atol=1e-5)


def test_mask_and_bias_in_one_are_told_apart() -> None:
    bias = 2 * random(B, 1, 1, S, seed=8)
    bias.masked_fill_(random(B, 1, 1, S, seed=9) > 0.5, LOWEST)
    tensors = (*inputs(queries=1), bias)
    module, _ = lowered(written_by_hand, *tensors, choice="absorb")
    assert len(calls(module, FIA_V2)) == 1
    torch.testing.assert_close(run(module, *tensors).double(), defined(*tensors), rtol=0, atol=1e-5)


def test_low_precision_is_no_worse_than_the_program() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        tensors = (*inputs(dtype, 1, heads=8), 20 * random(B, 1, 1, S, seed=8, dtype=dtype))
        wanted = defined(*tensors)
        plain = (written_by_hand(*tensors).double() - wanted).abs().max()
        module, _ = lowered(written_by_hand, *tensors, choice="absorb")
        assert len(calls(module, FIA_V2)) == 1
        assert (run(module, *tensors).double() - wanted).abs().max() <= 2 * plain


@pytest.mark.parametrize(
    ("queries", "heads", "reason"), [(1, N, "differs between heads"), (Q, 1, "several query tokens")]
)
def test_other_biases_are_expanded_with_the_reason(queries: int, heads: int, reason: str) -> None:
    tensors = (*inputs(torch.float64, queries), random(B, heads, queries, S, dtype=torch.float64))
    module, (outcome,) = lowered(masked, *tensors, choice="absorb")
    assert len(calls(module, FIA)) == 1 and reason in outcome.notes[1]
    torch.testing.assert_close(run(module, *tensors), defined(*tensors), rtol=0, atol=1e-10)


def test_a_device_takes_no_wider_rope_part() -> None:
    """Its rope part is of 64: keys are expanded there."""
    _, (outcome,) = lowered(
        masked,
        *(t.to("meta", torch.bfloat16) for t in (*inputs(queries=1), random(B, 1, 1, S))),
        target=Target.ASCEND910B,
        choice="absorb",
    )
    assert any("not absorb" in note and "no bias" in note for note in outcome.notes)
