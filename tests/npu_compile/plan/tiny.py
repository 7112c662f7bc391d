"""Small configs with layers of more than one kind."""

from __future__ import annotations

from typing import Any

DECODER: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA = {**DECODER, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GEMMA3 = {
    **DECODER,
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 6,
    "head_dim": 16,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}
DEEPSEEK_V3 = {
    **DECODER,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 4,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 1,
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTModel"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
OPT = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}
"""Its decoder breaks the graph of a step after the first."""
