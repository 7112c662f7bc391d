"""What isn't MLA, or isn't absorbed: with a reason where it looks like it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from npu_compile.passes.mla.site import MlaSite, NotAbsorbable
from tests.passes.mla.finding import only
from tests.passes.mla.spellings import LATENT, NOPE, ROPE, SCALE, VALUE, cat_expand, inputs, two_projections


def test_a_key_with_an_own_rope_part_per_head_is_none() -> None:
    """Keys wider than values, as in MiMo-V2: nothing is shared."""

    def wide_keys(query: Tensor, hidden: Tensor, key_weight: Tensor, value_weight: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        key = F.linear(hidden, key_weight).view(batch, tokens, 3, NOPE + ROPE).transpose(1, 2)
        turned = torch.cat([key[..., :NOPE], key[..., NOPE:] * 0.5], -1)
        value = F.linear(hidden, value_weight).view(batch, tokens, 3, VALUE).transpose(1, 2)
        return F.scaled_dot_product_attention(query, turned, value)

    query, hidden, _, _ = inputs()
    weights = torch.randn(3 * (NOPE + ROPE), LATENT), torch.randn(3 * VALUE, LATENT)
    assert only(wide_keys, query, hidden, *weights) is None


def test_keys_and_values_from_one_projection_alone_are_none() -> None:
    """A fused kv projection, or a latent without a rope part: ordinary attention serves both."""

    def fused(query: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = hidden.shape
        per_head = F.linear(hidden, weight).view(batch, tokens, 3, NOPE + VALUE).transpose(1, 2)
        key, value = per_head.split([NOPE, VALUE], -1)
        return F.scaled_dot_product_attention(query[..., :NOPE], key, value)

    query, hidden, _, weight = inputs()
    assert only(fused, query, hidden, weight) is None


def test_a_bias_is_a_reason() -> None:
    def biased(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight, bias).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, 3, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value)

    tensors = inputs()
    found = only(biased, *tensors, torch.randn(tensors[3].shape[0]))
    assert isinstance(found, NotAbsorbable) and "bias" in found.reason


def test_a_quantised_weight_is_a_reason() -> None:
    def dequantised(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return cat_expand(query, latent, rope, weight.to(torch.float32) * scales)

    query, latent, rope, weight = inputs()
    stored = (weight * 40).to(torch.int8)
    found = only(dequantised, query, latent, rope, stored, torch.rand(weight.shape[0], 1))
    assert isinstance(found, NotAbsorbable) and "quantised" in found.reason

    cast_only = lambda q, c, r, w: cat_expand(q, c, r, w.to(torch.float32))  # noqa: E731
    found = only(cast_only, query, latent, rope, stored)
    assert isinstance(found, NotAbsorbable) and "int8" in found.reason


def test_a_weight_that_is_computed_is_a_reason() -> None:
    found = only(two_projections, *inputs())
    assert isinstance(found, NotAbsorbable) and "computed by" in found.reason


def test_another_activation_between_latent_and_key_is_a_reason() -> None:
    def activated(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.silu(F.linear(latent, weight)).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, 3, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value)

    found = only(activated, *inputs())
    assert isinstance(found, NotAbsorbable) and "silu" in found.reason


@pytest.mark.parametrize("changed", ["latent", "rope", "projected", "key"])
def test_a_value_that_changes_before_the_attention_is_not_read_late(changed: str) -> None:
    def overwritten(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        latent, rope = latent.clone(), rope.clone()
        batch, tokens, _ = latent.shape
        projected = F.linear(latent, weight)
        if changed == "projected":
            projected.mul_(2)
        per_head = projected.view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = key_nope.new_empty(batch, 3, tokens, NOPE + ROPE)
        key[..., :NOPE].copy_(key_nope)
        key[..., NOPE:].copy_(rope.unsqueeze(1).expand(-1, 3, -1, -1))
        {"latent": latent, "rope": rope, "key": key, "projected": query.clone()}[changed].mul_(3)
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    assert not isinstance(only(overwritten, *inputs()), MlaSite)


def test_a_weight_that_changes_before_the_attention_is_not_read_late() -> None:
    def stepped(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        weight.mul_(0.5)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, 3, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    found = only(stepped, *inputs())
    assert isinstance(found, NotAbsorbable) and "overwritten (mul_" in found.reason


def test_a_projection_in_another_precision_than_its_latent_is_a_reason() -> None:
    """Autocast would cast the products around attention too, but not the attention."""
    query, latent, rope, weight = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = only(cat_expand, query.bfloat16(), latent, rope.bfloat16(), weight)
    assert isinstance(found, NotAbsorbable) and "autocast" in found.reason


@pytest.mark.parametrize("missing", ["column", "rows"])
def test_a_key_that_is_not_filled_completely_is_none(missing: str) -> None:
    def partly(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = key_nope.new_zeros(batch, 3, tokens, NOPE + ROPE + (missing == "column"))
        query = F.pad(query, (0, int(missing == "column")))
        end = -1 if missing == "rows" else None
        key[:, :, :end, :NOPE].copy_(key_nope[:, :, :end])
        key[..., NOPE : NOPE + ROPE].copy_(rope.unsqueeze(1).expand(-1, 3, -1, -1))
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    assert only(partly, *inputs()) is None


def test_latents_of_different_tokens_are_a_reason() -> None:
    def shifted(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope[:, :, 1:], rope[:, None, 1:].expand(-1, 3, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value[:, :, :-1], scale=SCALE)

    assert not isinstance(only(shifted, *inputs()), MlaSite)


def test_heads_in_another_order_are_a_reason() -> None:
    def flipped(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight).view(batch, tokens, NOPE + VALUE, 3).permute(0, 3, 1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, 3, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    found = only(flipped, *inputs())
    assert isinstance(found, NotAbsorbable) and "side by side" in found.reason
