"""What tiny configurations of some types of texts need beyond the rules."""

from __future__ import annotations

from typing import Any

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SERIES = {
    "lags_sequence": [1, 2, 7],
    "prediction_length": 4,
    "context_length": 24,
    "num_time_features": 1,
    "feature_size": 6,
}
ATOMS = {"num_uid_rope_pairs": 2, "head_dim": 16}
QSA = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}

TEXTS: dict[str, dict[str, Any]] = {
    "autoformer": SERIES,
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm5_next_text": {"index_kpool": 2},
    "glm5_next": {"text_config": {"index_kpool": 2}},
    "xmod": {"default_language": "en_XX"},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16},
    "jamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
    },
    "deepseek_v2": {"topk_method": "greedy"},
    "deepseek_ocr2_text": {"topk_method": "greedy", "mlp_layer_types": ["dense", "sparse"]},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "nemotron": {"num_key_value_heads": 2},
    "bros": {"dim_bbox_sinusoid_emb_2d": 32, "dim_bbox_sinusoid_emb_1d": 4, "dim_bbox_projection": 16},
    "dory": {
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"],
    },
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": PLAIN_ROPE}},
    "esmfold2": {
        "single_inputs_size": 131,
        "atom_encoder": ATOMS,
        "structure_head": {"diffusion_module": {"atom_encoder": ATOMS}},
    },
    "hrm_text": {"num_hidden_layers": 8, "num_layers_per_stack": 1},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "recurrent_gemma": {"num_hidden_layers": 2, "block_types": ["recurrent", "attention"]},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "dots3_note_text": {"head_dim": 24},
    "dots3_note": {"text_config": {"head_dim": 24}, "audio_config": {"adapter_input_size": 64}},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "perceiver": {"d_latents": 64, "d_model": 32, "num_latents": 6, "num_self_attends_per_block": 1},
    "step3p5": {"sliding_window": 5},
    "qwen4_exp_text": QSA,
    "qwen4_exp": {"text_config": QSA},
    "rwkv": {"num_hidden_layers": 2, "attention_hidden_size": 64},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "xlstm": {"qk_dim_factor": 1.0},
    "zamba2": {
        "mamba_headdim": 32,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "num_hidden_layers": 2,
        "layers_block_type": ["linear_attention", "hybrid"],
    },
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": PLAIN_ROPE}}},
}
