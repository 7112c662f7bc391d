"""Tiny random models of three attention families, and of two with sliding windows."""

from __future__ import annotations

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

COMMON = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
MOE = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
GQA = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
MLA = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32}
MLA_DIMS = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
ROUTER = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def tiny(name):
    torch.manual_seed(0)
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**COMMON, **GQA))
    elif name == "qwen3_moe":
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, **MOE, **GQA, num_experts=4))
    elif name == "mistral":
        model = MistralForCausalLM(MistralConfig(**COMMON, **GQA, sliding_window=8))
    elif name == "gemma3":
        types = ["sliding_attention", "full_attention"]
        model = Gemma3ForCausalLM(Gemma3TextConfig(**COMMON, **GQA, sliding_window=16, layer_types=types))
    else:
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**COMMON, **MOE, **MLA, **MLA_DIMS, **ROUTER))
    return model.eval()


def prompts_of(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 97, (length,), generator=generator) for length in lengths]


@torch.no_grad()
def eager_logits(model, sequences):
    """(B, V) of each sequence's last token, one sequence at a time, without a cache."""
    return torch.stack([model(tokens[None], use_cache=False).logits[0, -1] for tokens in sequences])
