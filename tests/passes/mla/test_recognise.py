"""What is MLA, whatever it is written like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.site import Operand
from tests.passes.graphs import aten_graph
from tests.passes.mla.finding import found_in, only
from tests.passes.mla.spellings import (
    LATENT,
    NOPE,
    ROPE,
    SCALE,
    SPELLINGS,
    VALUE,
    Attention,
    inputs,
    oracle,
    slice_writes,
)


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
