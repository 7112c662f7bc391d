"""Tiny random models of every MLA family, made from their configurations alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

from tests.models.tiny import VOCABULARY


@dataclass(frozen=True)
class Dims:
    """Sizes of the latent, of a head's nope and rope part, and of its value."""

    latent: int
    nope: int
    rope: int
    value: int


TINY = Dims(32, 16, 8, 16)
REAL = Dims(512, 128, 64, 128)
"""The head dims of DeepSeek-V3."""

_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "rope_theta": 1e4,
}


@dataclass(frozen=True)
class MlaFamily:
    """One model type; ``fixed_sites``: MLA computations in a forward, where it isn't one a layer."""

    name: str
    model: Any
    config: Callable[..., Any]
    extra: dict[str, Any]
    fixed_sites: int | None = None

    def sites(self, layers: int) -> int:
        return self.fixed_sites or layers

    def build(
        self, dims: Dims = TINY, attention: str = "sdpa", heads: int = 4, layers: int = 2, **changes: Any
    ) -> Any:
        sizes = {
            "vocab_size": VOCABULARY,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 16 * heads,
            "intermediate_size": 96,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "kv_lora_rank": dims.latent,
            "qk_nope_head_dim": dims.nope,
            "qk_rope_head_dim": dims.rope,
            "v_head_dim": dims.value,
            "max_position_embeddings": 256,
            "initializer_range": 0.1,
        }
        settings = {**sizes, **self.extra, **changes}
        if "head_dim" in settings and settings["head_dim"] is None:
            settings["head_dim"] = dims.rope
        for per_layer in ("layer_types", "mlp_layer_types"):
            if per_layer in settings:
                settings[per_layer] = settings[per_layer][-layers:]
        config = self.config(**settings)
        torch.manual_seed(0)
        return self.model._from_config(config, attn_implementation=attention).eval()


_MOE = {
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 2,
}
_HYBRID = {
    "n_group": 1,
    "topk_group": 1,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "dense"],
}

MLA_FAMILIES = {
    family.name: family
    for family in (
        MlaFamily("deepseek_v2", hf.DeepseekV2ForCausalLM, hf.DeepseekV2Config, {**_MOE, "q_lora_rank": 24}),
        MlaFamily(
            "deepseek_v3",
            hf.DeepseekV3ForCausalLM,
            hf.DeepseekV3Config,
            {**_MOE, "q_lora_rank": 24, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0}},
        ),
        MlaFamily(
            "deepseek_v3_half_rope",
            hf.DeepseekV3ForCausalLM,
            hf.DeepseekV3Config,
            {**_MOE, "q_lora_rank": None, "rope_interleave": False},
        ),
        MlaFamily("minicpm3", hf.MiniCPM3ForCausalLM, hf.MiniCPM3Config, {"q_lora_rank": 24, "scale_emb": 1}),
        MlaFamily("youtu", hf.YoutuForCausalLM, hf.YoutuConfig, {"q_lora_rank": 24}),
        MlaFamily(
            "mistral4",
            hf.Mistral4ForCausalLM,
            hf.Mistral4Config,
            {**_MOE, "q_lora_rank": 24, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.1}},
        ),
        MlaFamily(
            "glm4_moe_lite",
            hf.Glm4MoeLiteForCausalLM,
            hf.Glm4MoeLiteConfig,
            {k: v for k, v in _MOE.items() if k != "first_k_dense_replace"}
            | {"q_lora_rank": 24, "mlp_layer_types": ["dense", "dense"]},
        ),
        MlaFamily(
            "longcat_flash",
            hf.LongcatFlashForCausalLM,
            hf.LongcatFlashConfig,
            {
                "q_lora_rank": 24,
                "head_dim": None,
                "num_layers": 1,
                "num_hidden_layers": 2,
                "ffn_hidden_size": 96,
                "moe_topk": 2,
                "n_routed_experts": 2,
                "zero_expert_num": 1,
                "expert_ffn_hidden_size": 32,
            },
            fixed_sites=2,
        ),
        MlaFamily(
            "kimi_linear",
            hf.KimiLinearForCausalLM,
            hf.KimiLinearConfig,
            {**_HYBRID, "linear_head_dim": 16, "linear_num_heads": 2},
            fixed_sites=1,
        ),
        MlaFamily(
            "bailing_hybrid",
            hf.BailingHybridForCausalLM,
            hf.BailingHybridConfig,
            {**_HYBRID, "head_dim": 16},
            fixed_sites=1,
        ),
        MlaFamily(
            "axk1",
            hf.AXK1ForCausalLM,
            hf.AXK1Config,
            {k: v for k, v in _MOE.items() if k != "first_k_dense_replace"}
            | {"q_lora_rank": 24, "mlp_layer_types": ["dense", "dense"]},
        ),
    )
}
