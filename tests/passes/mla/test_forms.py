"""The absorbed and the split form: what calls they are and what they compute."""

from __future__ import annotations

import pytest
import torch

from tests.passes.mla.lowering import FIA, FIA_V2, calls, lowered, products, run
from tests.passes.mla.spellings import (
    LATENT,
    NOPE,
    SCALE,
    SPELLINGS,
    VALUE,
    Attention,
    B,
    Q,
    S,
    cat_expand,
    inputs,
    oracle,
    slice_writes,
)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("queries", [1, Q])
def test_both_forms_agree_with_the_definition_in_float64(spelling: Attention, queries: int) -> None:
    tensors = inputs(torch.float64, queries)
    wanted = oracle(*tensors)
    for choice, packet in (("absorb", FIA_V2), ("expand", FIA)):
        module, (outcome,) = lowered(spelling, *tensors, choice=choice)
        assert outcome.form == "mla" and len(calls(module, packet)) == 1
        torch.testing.assert_close(run(module, *tensors), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_absorbed_has_no_product_over_the_cache_and_no_assembled_key(heads: int) -> None:
    tensors = inputs(queries=1, heads=heads)
    module, (outcome,) = lowered(slice_writes, *tensors, choice="absorb")
    assert products(module, S) == []
    assert not [n for n in module.graph.nodes if "copy_" in n.name or "empty" in n.name]
    (call,) = calls(module, FIA_V2)
    assert tuple(call.meta["val"][0].shape) == (heads, B, 1, LATENT)
    assert call.kwargs["num_key_value_heads"] == 1 and call.kwargs["num_query_heads"] == heads
    assert call.kwargs["softmax_scale"] == SCALE
    assert outcome.notes == ("absorb: asked for",)


def test_the_split_form_assembles_no_key() -> None:
    module, _ = lowered(slice_writes, *inputs(), choice="expand")
    (call,) = calls(module, FIA)
    assert [
        n.name for n in module.graph.nodes if "copy_" in n.name or "empty" in n.name or "cat" in n.name
    ] == []
    assert call.args[1].meta["val"].shape[-1] == NOPE and call.args[2].meta["val"].shape[-1] == VALUE


def test_the_query_is_read_in_parts_where_it_was_made_of_parts() -> None:
    module, _ = lowered(cat_expand, *inputs(queries=1), choice="absorb")
    assert not [n for n in module.graph.nodes if n.target is torch.ops.aten.cat.default]


def test_a_weight_updated_in_place_counts_in_the_next_step() -> None:
    tensors = inputs(torch.float64, 1)
    module, _ = lowered(slice_writes, *tensors, choice="absorb")
    run(module, *tensors)
    tensors[3].mul_(-0.5)
    torch.testing.assert_close(run(module, *tensors), oracle(*tensors), rtol=0, atol=1e-10)


def test_low_precision_is_no_worse_than_the_program() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        tensors = inputs(dtype, 1, heads=8)
        wanted = oracle(*tensors)
        plain = (slice_writes(*tensors).double() - wanted).abs().max()
        for choice in ("absorb", "expand"):
            module, _ = lowered(slice_writes, *tensors, choice=choice)
            assert (run(module, *tensors).double() - wanted).abs().max() <= 2 * plain
