"""What is MLA and what isn't, whatever it is written like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from npu_compile.passes.mla.recognise import recognise_mla
from npu_compile.passes.mla.site import MlaSite, NotAbsorbable
from npu_compile.passes.recognise import recognise
from npu_compile.passes.recognise.assemble import Surroundings
from npu_compile.passes.site import Operand
from tests.passes.graphs import aten_graph
from tests.passes.mla.spellings import (
    LATENT,
    NOPE,
    ROPE,
    SCALE,
    SPELLINGS,
    VALUE,
    Attention,
    cat_expand,
    inputs,
    oracle,
    slice_writes,
    two_projections,
)


def found_in(module: fx.GraphModule) -> list[MlaSite | NotAbsorbable | None]:
    around = Surroundings(module.graph)
    return [recognise_mla(site, around) for site in recognise(module.graph).sites]


def only(function: Callable[..., Any], *tensors: Any) -> MlaSite | NotAbsorbable | None:
    (found,) = found_in(aten_graph(function, *tensors))
    return found


class _Values(fx.Interpreter):
    """Runs a graph and keeps every value as it was when it was made."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.kept = getattr(self, "kept", {})
        self.kept[n] = result
        return result


def read(values: dict[fx.Node, Any], operand: Operand) -> Tensor:
    tensor = values[operand.node]
    for target, arguments in operand.views:
        tensor = target(tensor, *arguments)
    return tensor


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("heads", [1, 3])
def test_the_parts_that_are_found_make_up_the_attention(spelling: Attention, heads: int) -> None:
    tensors = inputs(torch.float64, heads=heads)
    module = aten_graph(spelling, *tensors)
    (mla,) = found_in(module)
    assert isinstance(mla, MlaSite)
    assert (mla.latent_dim, mla.nope_dim, mla.rope_dim) == (LATENT, NOPE, ROPE)
    runner = _Values(module)
    runner.run(*tensors)
    latent, rope, nope, query_rope = (
        read(runner.kept, part) for part in (mla.latent, mla.key_rope, mla.query_nope, mla.query_rope)
    )
    torch.testing.assert_close(latent[:, 0], tensors[1], rtol=0, atol=0)
    torch.testing.assert_close(rope[:, 0], tensors[2], rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([nope, query_rope], -1), tensors[0], rtol=0, atol=0)
    for rows, start, width in ((mla.key_up, 0, NOPE), (mla.value_up, NOPE, VALUE)):
        assert runner.kept[rows.weight] is tensors[3]
        assert (rows.start, rows.stride, rows.width) == (start, NOPE + VALUE, width)


def test_the_spellings_compute_what_they_say() -> None:
    tensors = inputs(torch.float64)
    for spelling in SPELLINGS:
        torch.testing.assert_close(spelling(*tensors), oracle(*tensors))


def test_key_and_value_may_have_a_projection_each() -> None:
    def separate(
        query: Tensor, latent: Tensor, rope: Tensor, key_weight: Tensor, value_weight: Tensor
    ) -> Tensor:
        batch, tokens, _ = latent.shape
        key_nope = F.linear(latent, key_weight).view(batch, tokens, -1, NOPE).transpose(1, 2)
        value = F.linear(latent, value_weight).view(batch, tokens, -1, VALUE).transpose(1, 2)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    query, latent, rope, _ = inputs()
    mla = only(separate, query, latent, rope, torch.randn(3 * NOPE, LATENT), torch.randn(3 * VALUE, LATENT))
    assert isinstance(mla, MlaSite)
    assert (mla.key_up.start, mla.key_up.stride, mla.value_up.start, mla.value_up.stride) == (
        0,
        NOPE,
        0,
        VALUE,
    )
    assert mla.key_up.weight is not mla.value_up.weight


def test_all_keys_may_come_before_all_values() -> None:
    def blocks(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        batch, tokens, _ = latent.shape
        keys, values = F.linear(latent, weight).split([3 * NOPE, 3 * VALUE], -1)
        key_nope = keys.view(batch, tokens, -1, NOPE).transpose(1, 2)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, 3, -1, -1)], -1)
        value = values.view(batch, tokens, -1, VALUE).transpose(1, 2)
        return F.scaled_dot_product_attention(query, key, value, scale=SCALE)

    mla = only(blocks, *inputs())
    assert isinstance(mla, MlaSite)
    assert (mla.key_up.start, mla.key_up.stride, mla.key_up.width) == (0, NOPE, NOPE)
    assert (mla.value_up.start, mla.value_up.stride, mla.value_up.width) == (3 * NOPE, VALUE, VALUE)


def test_two_attentions_may_share_one_projection() -> None:
    def twice(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, _ = latent.shape
        per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, VALUE], -1)
        key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
        attend = F.scaled_dot_product_attention
        return attend(query, key, value, scale=SCALE), attend(query.flip(2), key, value, scale=SCALE)

    found = found_in(aten_graph(twice, *inputs()))
    assert len(found) == 2 and all(isinstance(mla, MlaSite) for mla in found)


# What isn't MLA.


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


def test_the_cache_of_the_latents_is_what_counts() -> None:
    def static(query: Tensor, cache: Tensor, ropes: Tensor, weight: Tensor, new: Tensor) -> Tensor:
        cache.index_copy_(1, torch.tensor([3]), new)
        return slice_writes(query, cache, ropes, weight)

    query, latent, rope, weight = inputs()
    found = only(static, query, latent, rope, weight, torch.randn(2, 1, LATENT))
    assert isinstance(found, MlaSite) and found.cache == "static"

    grown = lambda q, c, r, w, n: slice_writes(q, torch.cat([c, n], 1), F.pad(r, (0, 0, 0, 1)), w)  # noqa: E731
    found = only(grown, query, latent, rope, weight, torch.randn(2, 1, LATENT))
    assert isinstance(found, MlaSite) and found.cache == "dynamic"
