"""Multi-head latent attention in every Hugging Face family that has it: same tokens, right operators.

By default one layer of tiny dims a family; nightly two layers, the head dims of DeepSeek-V3, 32 steps and
hand-written attention too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers as hf

from tests.models.mla_families import MLA_FAMILIES, REAL, TINY, Dims
from tests.models.mla_run import Recorder, chunked, close, decode, generated, padded, prompt
from tests.models.tiny import VOCABULARY


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", MLA_FAMILIES)
def test_one_layer_with_a_static_cache(name: str) -> None:
    family = MLA_FAMILIES[name]
    decode(family.build(layers=1), "static", 4, family.sites(1))


def test_a_growing_cache() -> None:
    decode(MLA_FAMILIES["deepseek_v3"].build(layers=1), "dynamic", 3, 1)


def test_a_hybrid_of_linear_attention_and_mla() -> None:
    family = MLA_FAMILIES["kimi_linear"]
    decode(family.build(layers=2), "static", 2, family.sites(2))


def test_a_left_padded_batch_and_chunks() -> None:
    model = MLA_FAMILIES["deepseek_v3"].build(layers=1)
    padded(model, 1)
    chunked(model)


def test_keys_wider_than_values_are_not_mla_by_themselves() -> None:
    """MiMo-V2 has head dims of its own for keys and values, and no latent."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = hf.MiMoV2FlashConfig(
        **sizes,
        vocab_size=VOCABULARY,
        num_key_value_heads=4,
        head_dim=24,
        v_head_dim=16,
        mlp_layer_types=["dense"],
    )
    torch.manual_seed(0)
    model = hf.MiMoV2FlashForCausalLM._from_config(config, attn_implementation="eager").eval()
    recorder = Recorder()
    got = torch.compile(model.forward, backend=recorder)(input_ids=prompt()).logits
    close(got, model(input_ids=prompt()).logits)
    assert [outcome.form for one in recorder.drain() for outcome in one.outcomes] == ["softmax"]


def test_real_head_dims() -> None:
    """Three heads: a count that the device takes padded only."""
    decode(MLA_FAMILIES["deepseek_v3"].build(REAL, layers=1, heads=3), "static", 2, 1)


def test_a_mask_that_is_an_input_leaves_latents_absorbed() -> None:
    """Hand-written attention adds it: it could be any bias."""
    generated(MLA_FAMILIES["deepseek_v3"].build(attention="eager", layers=1), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dims", [TINY, REAL], ids=["tiny", "real"])
@pytest.mark.parametrize("name", MLA_FAMILIES)
def test_every_way_to_call_every_family(name: str, dims: Dims, attention: str) -> None:
    family = MLA_FAMILIES[name]
    model = family.build(dims, attention, heads=4 if dims is TINY else 3)
    sites = family.sites(2)
    decode(model, "static", 32, sites)
    decode(model, "dynamic", 8, sites)
    padded(model, sites)
    chunked(model)
    generated(model, sites)
