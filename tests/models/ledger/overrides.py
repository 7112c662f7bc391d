"""What a type's tiny configuration needs beyond the rules: data for `shrink`."""

from __future__ import annotations

from typing import Any

FILLED: dict[str, Any] = {
    "head_dim": 16,
    "prediction_length": 4,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
}
"""Fields without a default that models can't do without."""

ROTARY_SECTIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"glm4v_moe.*", (2, 1, 1)),
    (r"(glm4v|glm46v|glm_ocr|glm_image|glmga)(_text)?", (4, 2, 2)),
    (r"hunyuan_vl(_text)?", (2, 2, 2, 2)),
    (r"hy_v4_vl(_text)?", (1, 1, 2)),
    (
        r"(qwen2_vl|qwen2_5_vl|qwen3_vl|qwen3_vl_moe|qwen3_5|qwen3_5_moe|colqwen2|qwen2_5_omni|qwen3_omni).*",
        (2, 3, 3),
    ),
    (r"ernie4_5_vl.*", (3, 3, 2)),
    (r"(paddleocr_vl|video_llama_3).*", (2, 3, 3)),
)
"""(types, sections): half of a head's rotated part, shared out over time, height and width."""

RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
PYRAMID = {**RESNET, "out_features": ["stage2", "stage3", "stage4"]}


def _detr(backbone: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "use_timm_backbone": False,
        "backbone": None,
        "backbone_config": backbone,
        "num_feature_levels": 4,
        **more,
    }


SWIN = {"depths": [2, 2], "num_heads": [3, 6], "out_features": ["stage2"]}
FOUR_LAYERS = {"num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]}

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SERIES = {"lags_sequence": [1, 2, 3], "prediction_length": 4, "context_length": 24, "num_time_features": 1}
EFFICIENT = {"width_coefficient": 0.25, "depth_coefficient": 0.2}

OVERRIDES: dict[str, dict[str, Any]] = {
    "autoformer": SERIES,
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "align": {"vision_config": EFFICIENT},
    "align_vision_model": EFFICIENT,
    "efficientnet": EFFICIENT,
    "audio-spectrogram-transformer": {"max_length": 64},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1]},
    "mask2former": {"backbone_config": {"window_size": 2}},
    "maskformer": {"backbone_config": {"window_size": 2}},
    "oneformer": {"backbone_config": {"window_size": 2}},
    "chameleon": {"vocabulary_map": {"<image>": 90}},
    "emu3": {"vocabulary_map": {"<image>": 90}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "dots1": {"n_shared_experts": 1},
    "fastspeech2_conformer_with_hifigan": {"model_config": {"num_mel_bins": 80}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm5_next_text": {"index_kpool": 2},
    "glm5_next": {"text_config": {"index_kpool": 2}},
    "swin": SWIN,
    "swinv2": {**SWIN, "pretrained_window_sizes": [0, 0]},
    "swin2sr": {**SWIN, "num_heads": [3, 3]},
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
    "depth_anything": {"backbone_config": FOUR_LAYERS},
    "prompt_depth_anything": {"backbone_config": FOUR_LAYERS},
    "zoedepth": {"backbone_config": FOUR_LAYERS},
    "tipsv2_dpt": {"backbone_config": FOUR_LAYERS},
    "chmv2": {"backbone_config": FOUR_LAYERS},
    "seggpt": {"num_hidden_layers": 4, "merge_index": 0, "intermediate_hidden_state_indices": [0, 1, 2, 3]},
    "gemma3": {"mm_tokens_per_image": 4},
    "conditional_detr": _detr(RESNET),
    "dab-detr": _detr(RESNET),
    "detr": _detr(RESNET),
    "table-transformer": _detr(RESNET),
    "deformable_detr": _detr(PYRAMID),
    "grounding-dino": _detr(PYRAMID),
    "mm-grounding-dino": _detr(PYRAMID),
    "omdet-turbo": _detr(PYRAMID),
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
    "deepseek_ocr2": {"text_config": {"topk_method": "greedy", "mlp_layer_types": ["sparse"]}},
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
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": PLAIN_ROPE}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": PLAIN_ROPE}}},
}
