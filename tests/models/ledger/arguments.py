"""What stands for each argument of a forward: a few alternatives by its name and the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.models.ledger.rules import FIRST_SPECIAL_TOKEN

BATCH, LENGTH = 2, 9
GRID = 4
"""Patches of an image in each direction, where they are given as a list."""

FRAMES = 64
"""Of a sound's spectrogram, where the configuration doesn't say."""

Maker = Callable[[Any], list[Any]]
"""config -> alternatives for one argument."""

Call = Callable[[Any], dict[str, Any]]
"""config -> the arguments of a forward."""

INSIDE = ("vision_config", "audio_config", "backbone_config", "encoder_config", "encoder", "thinker_config")


def tokens(batch: int = BATCH, length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, FIRST_SPECIAL_TOKEN, (batch, length), generator=generator)


def noise(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.long)


def find(config: Any, *names: str, default: int) -> int:
    """The first of the fields that a configuration has, or a configuration inside of it."""
    for name in names:
        for holder in (config, *(getattr(config, key, None) for key in INSIDE)):
            value = getattr(holder, name, None)
            if isinstance(value, list | tuple):
                value = value[0] if value else None
            if isinstance(value, int) and value > 0:
                return value
    return default


def _width(config: Any) -> int:
    return find(config, "hidden_size", "d_model", default=64)


def _mels(config: Any) -> int:
    names = ("num_mel_bins", "feature_size", "n_mels", "input_feat_size", "input_dim")
    return find(config, *names, default=80) * find(config, "num_stacked_frames", default=1)


def _vocabulary(config: Any) -> int:
    return find(config.get_text_config(), "vocab_size", default=FIRST_SPECIAL_TOKEN)


def _input_ids(config: Any) -> list[torch.Tensor]:
    channels = find(config, "num_channels", "num_codebooks", default=2)
    codes = tokens(length=LENGTH * channels).reshape(BATCH, LENGTH, channels)
    return [tokens() % _vocabulary(config), codes % 8]


def _decoder_input_ids(config: Any) -> list[torch.Tensor]:
    ids = tokens(seed=3) % _vocabulary(config)
    return [ids, ids.repeat_interleave(2, 0)]


def _frames_a_patch(config: Any) -> int:
    return find(config, "temporal_patch_size", "patch_temporal", default=1)


def _pixels(config: Any) -> list[torch.Tensor]:
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if channels < 10 else 3
    size = find(config, "image_size", "img_size", default=32)
    patch = find(config, "patch_size", default=8)
    flat = channels * patch * patch
    return [
        noise(BATCH, channels, size, size),
        noise(BATCH, find(config, "num_frames", default=2), channels, size, size),
        noise(BATCH * GRID**2, flat * _frames_a_patch(config)),
        noise(BATCH * GRID**2, channels, patch, patch),
        noise(BATCH, GRID**2, flat),
        noise(BATCH, channels, 64, 64),
        noise(BATCH, 1, channels, size, size),
        noise(BATCH, channels, 128, 128),
    ]


def _video(config: Any) -> list[torch.Tensor]:
    size = find(config, "image_size", "crop_size", default=32)
    frames = find(config, "num_frames", "frames_per_clip", default=4)
    return [noise(BATCH, frames, 3, size, size), noise(BATCH, 3, frames, size, size)]


def _features(config: Any) -> list[torch.Tensor]:
    mels, frames = _mels(config), 2 * find(config, "max_source_positions", default=FRAMES // 2)
    shapes = [
        (mels, frames),
        (FRAMES, mels),
        (1, FRAMES, mels),
        (mels, FRAMES),
        (FRAMES, 80),
        (80, FRAMES),
        (FRAMES, 128),
    ]
    return [noise(BATCH, *shape) for shape in shapes]


def _features_mask(config: Any) -> list[torch.Tensor]:
    frames = 2 * find(config, "max_source_positions", default=FRAMES // 2)
    return [ones(BATCH, frames), ones(BATCH, FRAMES)]


def _wave(config: Any) -> list[torch.Tensor]:
    if hasattr(config, "frequency_stride"):
        return [noise(BATCH, find(config, "max_length", default=FRAMES), _mels(config))]
    shapes = [(2000,), (1, 2000), (FRAMES, 80), (FRAMES, find(config, "num_mel_bins", default=16)), (16000,)]
    return [noise(BATCH, *shape) for shape in shapes]


def _hidden(config: Any) -> list[torch.Tensor]:
    width, patch = _width(config), find(config, "patch_size", default=8)
    flat = 3 * patch**2 * _frames_a_patch(config)
    shapes = [(BATCH * GRID**2, flat), (BATCH, LENGTH, width), (BATCH * GRID**2, width)]
    return [noise(*shape) for shape in (*shapes, (BATCH, FRAMES, 160), (BATCH, 3, 32, 32))]


def _series(config: Any) -> list[torch.Tensor]:
    length = find(config, "context_length", default=32)
    channels = find(config, "num_input_channels", default=1)
    return [noise(BATCH, length), noise(BATCH, length, channels), noise(BATCH, PAST)]


PAST = 31
"""Of a time series: a context of 24 and lags of up to 7."""


def _latents(config: Any) -> list[torch.Tensor]:
    return [noise(BATCH, _width(config), 8), noise(BATCH, 8, _width(config))]


def _flattened_patches(config: Any) -> list[torch.Tensor]:
    width = find(config, "patch_embed_hidden_size", default=768)
    position = torch.ones(BATCH, GRID**2, 2)
    return [torch.cat([position, noise(BATCH, GRID**2, width)], -1), noise(BATCH, GRID**2, 770)]


def _patch_positions(config: Any) -> list[torch.Tensor]:
    axis = torch.arange(GRID)
    return [torch.cartesian_prod(axis, axis).expand(BATCH, -1, -1)]


def _encoder_states(config: Any) -> list[torch.Tensor]:
    return [noise(BATCH, 11, find(config, "encoder_hidden_size", "cross_hidden_size", default=64), seed=4)]


def _states(rows: int, *names: str, default: int = 64, seed: int = 2) -> Maker:
    """Floating-point rows as wide as a field of the configuration says."""
    return lambda config: [noise(BATCH, rows, find(config, *names, default=default), seed=seed)]


def _fixed(make: Callable[[], Any]) -> Maker:
    return lambda config: [make()]


MAKERS: dict[str, Maker] = {
    # texts
    "input_ids": _input_ids,
    "decoder_input_ids": _decoder_input_ids,
    "qformer_input_ids": _fixed(lambda: tokens(seed=5)),
    "task_inputs": lambda config: [tokens(length=find(config, "task_seq_len", default=LENGTH), seed=6)],
    "attention_mask": _fixed(lambda: ones(BATCH, LENGTH)),
    "bbox": _fixed(lambda: torch.tensor([1, 2, 5, 7]).expand(BATCH, LENGTH, 4)),
    "inputs_embeds": _states(LENGTH, "hidden_size"),
    "context": _states(LENGTH, "hidden_size"),
    "query_embeds": _states(6, "hidden_size"),
    "encoder_hidden_states": _encoder_states,
    "inputs": lambda config: [noise(BATCH, 12, _width(config)), noise(BATCH, 3, 32, 32)],
    "image_embeds_position_mask": _fixed(lambda: torch.tensor([[0] + [1] * 8] * BATCH)),
    "num_patches": _fixed(lambda: LENGTH),
    # images
    "pixel_values": _pixels,
    "image": _pixels,
    "prompt_pixel_values": _pixels,
    "prompt_masks": _pixels,
    "pixel_values_videos": _video,
    "hidden_states": _hidden,
    "patch_embeds": _hidden,
    "flattened_patches": _flattened_patches,
    "grid_thw": _fixed(lambda: torch.tensor([[1, GRID, GRID]] * BATCH)),
    "image_grid_thw": _fixed(lambda: torch.tensor([[1, GRID, GRID]] * BATCH)),
    "image_grid_hw": _fixed(lambda: torch.tensor([[GRID, GRID]] * BATCH)),
    "spatial_shapes": _fixed(lambda: torch.tensor([[GRID, GRID]] * BATCH)),
    "merge_sizes": _fixed(lambda: ones(BATCH)),
    "image_sizes": _fixed(lambda: torch.tensor([[32, 32]] * BATCH)),
    "pixel_attention_mask": lambda config: [ones(BATCH, GRID**2), ones(BATCH, 32, 32)],
    "image_position_ids": _patch_positions,
    "pixel_position_ids": _patch_positions,
    "aspect_ratio_ids": _fixed(lambda: ones(BATCH, 1)),
    "aspect_ratio_mask": _fixed(lambda: ones(BATCH, 1, 4)),
    "visual_feats": _states(6, "visual_feat_dim"),
    "visual_pos": _fixed(lambda: noise(BATCH, 6, 4)),
    "vision_features": _fixed(lambda: noise(BATCH, 16, 64)),
    "text_features": _fixed(lambda: noise(BATCH, 7, 64)),
    "vision_pos_encoding": _fixed(lambda: noise(BATCH, 16, 64)),
    # sounds
    "input_features": _features,
    "input_features_mask": _features_mask,
    "audio_mel": _states(FRAMES, "input_feat_size", default=128),
    "audio_mel_mask": _fixed(lambda: torch.zeros(BATCH, FRAMES, dtype=torch.bool)),
    "input_values": _wave,
    "spectrogram": _states(12, "model_in_dim", default=80),
    "mask": _fixed(lambda: ones(BATCH, FRAMES).bool()),
    "chunk_sample_lengths": _fixed(lambda: torch.tensor([FRAMES] * BATCH)),
    "audio_input_ids": _fixed(tokens),
    "latents": _latents,
    # series and decisions
    "past_values": _series,
    "past_values_padding": lambda config: [torch.zeros(BATCH, find(config, "context_length", default=32))],
    "freq": _fixed(lambda: torch.zeros(BATCH, 1, dtype=torch.long)),
    "past_observed_mask": _fixed(lambda: torch.ones(BATCH, PAST)),
    "past_time_features": _states(PAST, "num_time_features", default=1),
    "future_values": lambda config: [noise(BATCH, find(config, "prediction_length", default=4))],
    "future_time_features": _states(4, "num_time_features", default=1),
    "states": _states(LENGTH, "state_dim", default=17),
    "actions": _states(LENGTH, "act_dim", default=4),
    "rewards": _fixed(lambda: noise(BATCH, LENGTH, 1)),
    "returns_to_go": _fixed(lambda: noise(BATCH, LENGTH, 1)),
    "timesteps": _fixed(lambda: torch.arange(LENGTH).expand(BATCH, -1)),
}
