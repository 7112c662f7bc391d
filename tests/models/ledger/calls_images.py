"""What models of images are called with, where names don't tell it."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.ledger.arguments import BATCH, GRID, LENGTH, Call, find, noise, ones, tokens


def _image(config: Any, *leading: int) -> torch.Tensor:
    size = find(config, "image_size", default=32)
    return noise(*leading, 3, size, size)


def _granite4_vision(config: Any) -> dict[str, Any]:
    """Each image in two parts: as it is, and a grid of one tile, a line's end behind each of its rows."""
    text = _with_image_tokens(10, config.image_token_index)
    sizes = torch.tensor([[32, 32]] * BATCH)
    return {"input_ids": text, "pixel_values": noise(BATCH, 2, 3, 32, 32), "image_sizes": sizes}


def _idefics(config: Any) -> dict[str, Any]:
    return {
        "input_ids": tokens(),
        "pixel_values": _image(config, BATCH, 2),
        "image_attention_mask": ones(BATCH, 1, 2),
    }


def _targets(config: Any) -> dict[str, Any]:
    """Images whose patches are in one row, and the grids that they were."""
    patch, size = config.patch_size, config.image_size // config.patch_size
    row = noise(1, 3, patch, BATCH * size**2 * patch)
    return {"pixel_values": row, "target_sizes": torch.tensor([[size, size]] * BATCH)}


def _mllama_vision(config: Any) -> dict[str, Any]:
    tiles = config.max_num_tiles
    return {
        "pixel_values": _image(config, BATCH, 1, tiles),
        "aspect_ratio_ids": ones(BATCH, 1),
        "aspect_ratio_mask": ones(BATCH, 1, tiles),
    }


def _molmo2_adapter(config: Any) -> dict[str, Any]:
    width = config.hidden_size * len(config.vision_feature_layer)
    pooled = torch.arange(GRID**2).reshape(-1, 4)
    return {"image_features": noise(BATCH, GRID**2, width), "pooled_patches_idx": pooled}


def _omdet(config: Any) -> dict[str, Any]:
    return {
        "pixel_values": noise(BATCH, 3, 64, 64),
        "classes_input_ids": tokens(2 * BATCH, seed=5),
        "classes_attention_mask": ones(2 * BATCH, LENGTH),
        "tasks_input_ids": tokens(seed=6),
        "tasks_attention_mask": ones(BATCH, LENGTH),
        "classes_structure": torch.tensor([2] * BATCH),
    }


def _inkling2_vision(config: Any) -> dict[str, Any]:
    side = config.patch_size * config.spatial_merge_size
    return {
        "pixel_values": noise(BATCH * GRID**2, side, side, config.num_channels),
        "image_grid_thw": torch.tensor([[1, GRID, GRID]] * BATCH),
    }


def _with_image_tokens(count: int, token: int) -> torch.Tensor:
    text = tokens(length=LENGTH + count)
    text[:, 2 : 2 + count] = token
    return text


def _llama4(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    count = int((vision.image_size // vision.patch_size) ** 2 * vision.pixel_shuffle_ratio**2)
    text = _with_image_tokens(count, config.image_token_id)
    return {"input_ids": text, "pixel_values": _image(vision, BATCH)}


def _pi0(config: Any) -> dict[str, Any]:
    vision = config.vlm_config.vision_config
    count = (vision.image_size // vision.patch_size) ** 2
    return {
        "state": noise(BATCH, config.max_state_dim),
        "noise": noise(BATCH, config.chunk_size, config.max_action_dim),
        "timestep": torch.tensor([0.3, 0.6]),
        "input_ids": _with_image_tokens(count, config.vlm_config.image_token_id),
        "pixel_values": _image(vision, BATCH, 1),
        "pixel_attention_mask": ones(BATCH, 1).bool(),
    }


def _sam3_encoder(config: Any) -> dict[str, Any]:
    maps = [noise(BATCH, config.hidden_size, GRID, GRID, seed=seed) for seed in (2, 3)]
    return {
        "vision_features": maps[:1],
        "text_features": noise(BATCH, 7, config.hidden_size),
        "vision_pos_embeds": maps[1:],
    }


def _sam3_masks(config: Any) -> dict[str, Any]:
    width = config.hidden_size
    return {
        "decoder_queries": noise(BATCH, 5, width),
        "backbone_features": [noise(BATCH, width, GRID * scale, GRID * scale) for scale in (4, 2, 1)],
        "encoder_hidden_states": noise(BATCH, GRID**2, width),
        "prompt_features": noise(BATCH, 7, width),
        "prompt_mask": ones(BATCH, 7).bool(),
    }


IMAGES: dict[str, Call] = {
    "granite4_vision": _granite4_vision,
    "idefics": _idefics,
    "minicpm_ocr_vision": _targets,
    "minicpmv4_6_vision": _targets,
    "minicpmv4_7_vision": _targets,
    "llama4": _llama4,
    "mllama_vision_model": _mllama_vision,
    "molmo2_adapter": _molmo2_adapter,
    "molmo2_vision": lambda config: {
        "pixel_values": noise(BATCH, config.num_position_embeddings, 3 * config.patch_size**2)
    },
    "omdet-turbo": _omdet,
    "inkling_vision": lambda config: {
        "pixel_values": noise(
            BATCH, config.temporal_patch_size, config.patch_size, config.patch_size, config.num_channels
        )
    },
    "inkling2_vision": _inkling2_vision,
    "kosmos_2_5_vision_model": lambda config: {
        "hidden_states": noise(BATCH, GRID**2, config.hidden_size),
        "attention_mask": ones(BATCH, GRID**2),
    },
    "paddleocr_vl_vision": lambda config: {
        "pixel_values": noise(1, BATCH * GRID**2, 3, config.patch_size, config.patch_size),
        "grid_thw": torch.tensor([[1, GRID, GRID]] * BATCH),
    },
    "seggpt": lambda config: {
        name: noise(BATCH, 3, 32, 32, seed=seed)
        for seed, name in enumerate(("pixel_values", "prompt_pixel_values", "prompt_masks"))
    },
    "sam3_detr_encoder": _sam3_encoder,
    "sam3_lite_text_detr_encoder": _sam3_encoder,
    "sam3_mask_decoder": _sam3_masks,
    "sam3_lite_text_mask_decoder": _sam3_masks,
    "tvp": lambda config: {
        "input_ids": tokens(1),
        "pixel_values": noise(1, config.num_frames, 3, config.max_img_size, config.max_img_size),
    },
    "unlimited_ocr_vision_encoder": lambda config: {
        "patch_embeds": noise(BATCH, config.hidden_size, GRID, GRID)
    },
    "xclip_vision_model": lambda config: {"pixel_values": _image(config, BATCH * config.num_frames)},
    "pi0": _pi0,
}
