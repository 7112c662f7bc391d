"""Masks over latents: lengths, sparse mode 3, or keys moved to the front."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.passes.graphs import random
from tests.passes.mla.lowering import FIA, FIA_V2, calls, lowered, products, run
from tests.passes.mla.spellings import NOPE, SCALE, VALUE, B, N, Q, S, inputs, oracle


def masked(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, keep: Tensor) -> Tensor:
    """``keep`` (B, 1, Q, S) bool, True takes part."""
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
    key_nope, value = per_head.split([NOPE, VALUE], -1)
    key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=SCALE)


def test_keys_masked_for_one_query_token_are_left_out_of_the_latents() -> None:
    """NaN in masked latents doesn't reach the result, holes in the mask are no obstacle."""
    query, latent, rope, weight = inputs(torch.float64, 1)
    keep = random(B, 1, 1, S, seed=9) > 0
    wanted = oracle(query, latent, rope, weight, keep[:, 0].expand(B, 1, S))
    latent[~keep[:, 0, 0]] = float("nan")
    module, (outcome,) = lowered(masked, query, latent, rope, weight, keep, choice="absorb")
    (call,) = calls(module, FIA_V2)
    assert "atten_mask" not in call.kwargs and call.kwargs["sparse_mode"] == 0
    torch.testing.assert_close(run(module, query, latent, rope, weight, keep), wanted, rtol=0, atol=1e-10)
    assert outcome.op == "npu_fused_infer_attention_score_v2"


def test_a_request_without_keys_gives_what_the_program_gives() -> None:
    query, latent, rope, weight = inputs(torch.float64, 1)
    keep = torch.ones(B, 1, 1, S, dtype=torch.bool)
    keep[1] = False
    module, _ = lowered(masked, query, latent, rope, weight, keep, choice="absorb")
    got = run(module, query, latent, rope, weight, keep)
    torch.testing.assert_close(got, masked(query, latent, rope, weight, keep), rtol=0, atol=1e-10)
    assert got[1].eq(0).all()


def test_a_finite_fill_averages_where_nothing_is_left() -> None:
    def filled(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, keep: Tensor) -> Tensor:
        return masked(query, latent, rope, weight, torch.where(keep, 0.0, torch.finfo(query.dtype).min))

    query, latent, rope, weight = inputs(queries=1)
    keep = torch.ones(B, 1, 1, S, dtype=torch.bool)
    keep[1], keep[0, ..., 5:] = False, False
    for choice in ("absorb", "expand"):
        module, _ = lowered(filled, query, latent, rope, weight, keep, choice=choice)
        got = run(module, query, latent, rope, weight, keep)
        torch.testing.assert_close(got, filled(query, latent, rope, weight, keep))


def test_several_tokens_with_an_explicit_mask_are_expanded() -> None:
    query, latent, rope, weight = inputs(torch.float64)
    keep = random(B, 1, Q, S, seed=9) > -1
    module, (outcome,) = lowered(masked, query, latent, rope, weight, keep, choice="absorb")
    assert len(calls(module, FIA)) == 1 and "explicit mask" in outcome.notes[1]
    wanted = oracle(query, latent, rope, weight, keep[:, 0])
    torch.testing.assert_close(run(module, query, latent, rope, weight, keep), wanted, rtol=0, atol=1e-10)


def step(
    query: Tensor, latents: Tensor, ropes: Tensor, weight: Tensor, latent: Tensor, rope: Tensor, seen: Tensor
) -> Tensor:
    """Write this step's latents behind the ``seen`` ones in a static cache, and attend causally."""
    tokens = query.shape[2]
    places = torch.arange(tokens) + seen
    latents.index_copy_(1, places, latent)
    ropes.index_copy_(1, places, rope)
    keep = torch.arange(latents.shape[1])[None, :] <= places[:, None]
    return masked(query, latents, ropes, weight, keep[None, None])


def step_inputs(
    queries: int, seen: int, dtype: torch.dtype = torch.float64, heads: int = N
) -> tuple[Tensor, ...]:
    """The cache holds NaN behind the seen tokens."""
    query, latents, ropes, weight = inputs(dtype, queries, heads)
    new = latents[:, seen : seen + queries].clone(), ropes[:, seen : seen + queries].clone()
    latents, ropes = latents.clone(), ropes.clone()
    latents[:, seen:], ropes[:, seen:] = float("nan"), float("nan")
    return query, latents, ropes, weight, *new, torch.tensor(seen)


@pytest.mark.parametrize("queries", [1, 2, Q])
@pytest.mark.parametrize("seen", [0, 6, S - Q])
def test_a_causal_mask_over_a_cache_is_a_length(queries: int, seen: int) -> None:
    tensors = step_inputs(queries, seen)
    module, (outcome,) = lowered(step, *tensors, choice="absorb")
    (call,) = calls(module, FIA_V2)
    assert call.kwargs["sparse_mode"] == (0 if queries == 1 else 3) and "actual_seq_kvlen" in call.kwargs
    assert outcome.cache == "static" and products(module, S) == []
    query, latent, rope, weight = inputs(torch.float64, queries)
    keep = torch.arange(S)[None, :] <= torch.arange(queries)[:, None] + seen
    wanted = oracle(query, latent, rope, weight, keep.expand(B, -1, -1))
    torch.testing.assert_close(run(module, *tensors), wanted, rtol=0, atol=1e-10)
