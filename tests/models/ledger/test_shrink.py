"""A tiny configuration keeps what makes a type's attention its own."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from tests.models.ledger import rules
from tests.models.ledger.shrink import layers_to_keep, tiny_config


def tiny(model_type: str) -> Any:
    return tiny_config(model_type, CONFIG_MAPPING[model_type], "tiny")


def test_grouped_heads_stay_grouped() -> None:
    config = tiny("mistral")
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)


def test_one_key_head_stays_one() -> None:
    assert tiny("gpt_bigcode").multi_query


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt_oss", "qwen3_next", "llama4_text"])
def test_every_kind_of_layer_is_kept(model_type: str) -> None:
    assert set(tiny(model_type).layer_types) == set(CONFIG_MAPPING[model_type]().layer_types)


def test_windows_are_shorter_than_a_prompt() -> None:
    assert tiny("gemma3_text").sliding_window == 5


def test_special_tokens_are_inside_the_vocabulary_and_apart() -> None:
    config = tiny("qwen2_vl")
    ids = [
        config.image_token_id,
        config.video_token_id,
        config.vision_start_token_id,
        config.vision_end_token_id,
    ]
    assert len(set(ids)) == 4
    assert all(rules.FIRST_SPECIAL_TOKEN <= token < rules.VOCABULARY for token in ids)


def test_one_layer_of_each_kind() -> None:
    kinds = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "a", "b", "a"],
        "mlp_layer_types": ["c", "d", "d", "d"],
    }
    assert layers_to_keep(kinds) == [0, 1, 2]
    assert layers_to_keep({"num_hidden_layers": 4}) == []


def test_larger_sizes_stay_in_a_shallow_configuration() -> None:
    config = tiny_config("llama", CONFIG_MAPPING["llama"], "shallow")
    assert (config.hidden_size, config.num_hidden_layers) == (CONFIG_MAPPING["llama"]().hidden_size, 1)
