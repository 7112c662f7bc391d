"""What tiny configurations of some types of images need beyond the rules."""

from __future__ import annotations

from typing import Any

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
PYRAMID_WIDTHS = {"backbone_config": {"hidden_sizes": [256, 512, 1024, 2048]}}
HIERA = {
    "image_size": [64, 64],
    "hidden_size": 16,
    "embed_dim_per_stage": [16, 32, 64, 128],
    "blocks_per_stage": [1, 1, 2, 1],
    "num_attention_heads_per_stage": [1, 1, 2, 2],
    "window_size_per_stage": [4, 4, 2, 2],
    "global_attention_blocks": [3],
}
HIERA_VISION = {
    "backbone_config": HIERA,
    "backbone_channel_list": [128, 64, 32, 16],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}
HIERA_SEGMENTER = {
    "vision_config": HIERA_VISION,
    "prompt_encoder_config": {"image_size": 64, "patch_size": 16},
}
INTRACLASS = {
    "scale_factor_list": [1, 2, 4, 8],
    "kernel_list": [3, 2, 2],
    "intraclass_block_config": {
        "reduce_channel": [1, 1, 0],
        "return_channel": [1, 1, 0],
        **{
            f"{name}_{ratio}ratio": [
                [size * tall or 1, size * wide or 1],
                1,
                [size // 2 * tall, size // 2 * wide],
            ]
            for name, tall, wide in (
                ("vertical_long_to_small_conv", 1, 0),
                ("horizontal_small_to_long_conv", 0, 1),
                ("symmetric_conv_long", 1, 1),
            )
            for ratio, size in (("long", 7), ("mid", 5), ("short", 3))
        },
    },
}
LCNET = {
    "stem_channels": [3, 8, 16],
    "block_configs": [
        [[3, 16, 16, 1, True]],
        [[3, 16, 32, 2, False]],
        [[3, 32, 48, 2, True]],
        [[3, 48, 64, 2, False]],
    ],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "stage_out_channels": [16, 32, 48, 64],
}
EFFICIENT = {"width_coefficient": 0.25, "depth_coefficient": 0.2}

IMAGES: dict[str, dict[str, Any]] = {
    "align": {"vision_config": EFFICIENT, "projection_dim": 80},
    "align_vision_model": EFFICIENT,
    "mask2former": {"backbone_config": {"window_size": 2}, "decoder_layers": 2},
    "maskformer": {"backbone_config": {"window_size": 2}},
    "oneformer": {"backbone_config": {"window_size": 2}, "decoder_layers": 2},
    "chameleon": {"vocabulary_map": {"<image>": 90}},
    "emu3": {"vocabulary_map": {"<image>": 90}, "vq_config": {"base_channels": 32, "hidden_size": 128}},
    "swin": SWIN,
    "swinv2": {**SWIN, "pretrained_window_sizes": [0, 0]},
    "swin2sr": {**SWIN, "num_heads": [3, 3]},
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
    "depth_anything": {"backbone_config": FOUR_LAYERS},
    "prompt_depth_anything": {"backbone_config": FOUR_LAYERS},
    "zoedepth": {"backbone_config": FOUR_LAYERS, "bottleneck_features": 64},
    "tipsv2_dpt": {"backbone_config": FOUR_LAYERS},
    "chmv2": {"backbone_config": FOUR_LAYERS},
    "seggpt": {
        "num_hidden_layers": 4,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [0, 1, 2, 3],
        "image_size": [64, 32],
    },
    "gemma3": {"mm_tokens_per_image": 4},
    "conditional_detr": _detr(RESNET),
    "dab-detr": _detr(RESNET),
    "detr": _detr(RESNET),
    "table-transformer": _detr(RESNET),
    "deformable_detr": _detr(PYRAMID),
    "grounding-dino": _detr(PYRAMID),
    "mm-grounding-dino": _detr(PYRAMID),
    "deepseek_ocr2": {"text_config": {"topk_method": "greedy", "mlp_layer_types": ["sparse"]}},
    "apertus1p5": {
        "image_token_offset": 16,
        "audio_token_offset": 48,
        "vision_config": {"codebook_size": 32},
        "audio_config": {"codebook_size": 32},
    },
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [0, 0, 0, 0],
        "downsample_rate": "1/2",
        "image_grid_pinpoints": [[32, 32]],
    },
    "blip-2": {"image_token_index": 90},
    "instructblip": {"image_token_index": 90},
    "instructblipvideo": {"video_token_index": 90},
    "llama4_vision_model": {"intermediate_size": 256},
    "llama4": {"vision_config": {"intermediate_size": 256}},
    "lw_detr": {
        "backbone_config": {"num_windows": 4},
        "projector_scale_factors": [1.0],
        "num_feature_levels": 1,
        "projector_in_channels": [64],
    },
    "depth_pro": {"intermediate_hook_ids": [0, 0]},
    "pp_doclayout_v2": PYRAMID_WIDTHS,
    "pp_doclayout_v3": PYRAMID_WIDTHS,
    "pp_doclayout_v4": PYRAMID_WIDTHS,
    "sam2_hiera_det_model": HIERA,
    "sam2_vision_model": HIERA_VISION,
    "sam2": HIERA_SEGMENTER,
    "sam2_video": HIERA_SEGMENTER,
    "sam3_tracker": {"vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}},
    "sapiens2": {"num_key_value_heads_per_layer": [4, 2]},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}, "mm_tokens_per_image": 4},
    "cvt": {"depth": [1, 2, 3]},
    "deepseek_ocr2_vision": {"sam_config": {"downsample_channels": [32, 64]}},
    "unlimited_ocr_vision": {"sam_config": {"downsample_channels": [32, 64]}},
    "efficientnet": {**EFFICIENT, "hidden_dim": 320},
    "janus": {"vq_config": {"base_channels": 32}},
    "janus_vqgan": {"base_channels": 32, "num_patches": 2},
    "lightglue": {"num_hidden_layers": 2},
    "muse_spark": {"out_hidden_size": 256, "audio_config": {"hidden_sizes": [8, 16, 32, 64]}},
    "omdet-turbo": {
        **_detr(PYRAMID),
        "apply_layernorm_after_vision_backbone": False,
        "encoder_in_channels": [16, 16, 32],
        "text_projection_in_dim": 64,
        "text_projection_out_dim": 64,
        "vision_features_channels": [32, 32, 32],
        "num_feature_levels": 3,
        "decoder_hidden_dim": 32,
        "d_model": 32,
    },
    "pi0": {"chunk_size": 6},
    "step3p7": {"text_config": {"sliding_window": 5}},
    "vitmatte": {"backbone_config": {"patch_size": 16}},
    "pp_ocrv5_server_det": INTRACLASS,
    "pp_ocrv6_medium_det": {**INTRACLASS, "backbone_config": LCNET},
    "pp_ocrv6_small_det": {"backbone_config": LCNET, "layer_list_out_channels": [16, 32, 48, 64]},
    "textnet": {"stem_out_channels": 16},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "backbone_config": RESNET},
    "uvdoc": {"backbone_config": {"out_features": [f"stage{index}" for index in range(1, 7)]}},
}
