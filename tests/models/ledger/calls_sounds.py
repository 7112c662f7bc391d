"""What models of sounds are called with, where names don't tell it."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.models.ledger.arguments import BATCH, FRAMES, LENGTH, Call, noise, ones, tokens


def _clap(config: Any) -> dict[str, Any]:
    audio = getattr(config, "audio_config", config)
    frames = audio.spec_size**2 // audio.num_mel_bins
    sound = {"input_features": noise(BATCH, 1, frames, audio.num_mel_bins), "is_longer": ones(BATCH, 1)}
    return {"input_ids": tokens(), **sound} if audio is not config else sound


def _nemotron_audio(config: Any) -> dict[str, Any]:
    mels = config.asr_config.num_mel_bins
    return {"input_features": noise(BATCH, FRAMES, mels), "input_features_mask": ones(BATCH, FRAMES)}


def _windows(config: Any) -> int:
    """The frames of a sound of two windows."""
    return 4 * config.n_window


def _lengths(config: Any) -> dict[str, Any]:
    """The sounds of a batch one after the other, and how long each is."""
    frames = _windows(config)
    return {
        "input_features": noise(config.num_mel_bins, BATCH * frames),
        "feature_lens": torch.tensor([frames] * BATCH),
    }


def _qwen3_asr_encoder(config: Any) -> dict[str, Any]:
    frames = _windows(config)
    return {
        "input_features": noise(BATCH, config.num_mel_bins, frames),
        "input_features_mask": ones(BATCH, frames),
    }


def _dia(config: Any) -> dict[str, Any]:
    channels = config.decoder_config.num_channels
    codes = tokens(length=LENGTH * channels, seed=3).reshape(BATCH, LENGTH, channels)
    return {"input_ids": tokens(), "decoder_input_ids": codes % config.decoder_config.vocab_size}


def _codec(config: Any) -> dict[str, Any]:
    hop = math.prod(config.downsampling_ratios)
    return {
        "input_values": noise(BATCH, 1, 12 * hop),
        "input_features": noise(BATCH, 12, config.semantic_model_config.feature_projection_input_dim),
    }


def _fun_asr_nano(config: Any) -> dict[str, Any]:
    """A special token for each frame."""
    sound, frames = config.audio_config, 6
    text = tokens(length=LENGTH + frames)
    text[:, 2 : 2 + frames] = config.audio_token_id
    return {
        "input_ids": text,
        "input_features": noise(BATCH, frames, sound.num_mel_bins * sound.num_stacked_frames),
        "input_features_mask": ones(BATCH, frames),
    }


def _musicgen(config: Any) -> dict[str, Any]:
    codes = tokens(BATCH * config.decoder.num_codebooks, seed=3) % config.decoder.vocab_size
    return {"input_ids": tokens() % config.text_encoder.vocab_size, "decoder_input_ids": codes}


def _qwen2_5_omni_dit(config: Any) -> dict[str, Any]:
    frames = 4 * config.repeats
    return {
        "hidden_states": noise(BATCH, frames, config.mel_dim),
        "condition_vector": noise(BATCH, 12, config.mel_dim),
        "speaker_embedding": noise(BATCH, frames, config.enc_emb_dim),
        "quantized_code": tokens(length=4),
        "time_step": torch.tensor(0.3),
    }


def _qwen2_5_omni_token2wav(config: Any) -> dict[str, Any]:
    dit = config.dit_config
    return {
        "code": tokens(1, 4),
        "conditioning": noise(1, dit.enc_emb_dim),
        "reference_mel": noise(1, 12, dit.mel_dim),
        "num_steps": 2,
    }


def _embedded(config: Any) -> dict[str, Any]:
    return {"inputs_embeds": noise(BATCH, LENGTH, config.hidden_size)}


SOUNDS: dict[str, Call] = {
    "clap": _clap,
    "dia": _dia,
    "clap_audio_model": _clap,
    "nemotron3_5_transcribe_audio": _nemotron_audio,
    "qwen2_5_omni_audio_encoder": _lengths,
    "qwen3_omni_moe_audio_encoder": _lengths,
    "qwen3_asr_encoder": _qwen3_asr_encoder,
    "csm_depth_decoder_model": lambda config: {
        "input_ids": tokens() % config.vocab_size,
        "backbone_last_hidden_state": noise(BATCH, config.backbone_hidden_size),
    },
    "moshi_depth": lambda config: {
        "input_ids": tokens() % config.audio_vocab_size,
        "last_hidden_state": noise(BATCH, LENGTH, config.input_size),
    },
    "fun_asr_nano": _fun_asr_nano,
    "inkling_audio": lambda config: {
        "audio_input_ids": tokens(length=LENGTH * config.num_codebooks).reshape(BATCH, LENGTH, -1)
        % config.codebook_size
    },
    "kyutai_speech_to_text": lambda config: {
        "input_ids": tokens(length=LENGTH * (config.num_codebooks + 1)).reshape(BATCH, LENGTH, -1)
        % config.codebook_vocab_size
    },
    "phi4_multimodal_audio": lambda config: {
        "hidden_states": noise(BATCH, FRAMES, config.input_size),
        "mask": ones(BATCH, FRAMES).bool(),
    },
    "qwen3_omni_moe_talker_text": _embedded,
    "qwen3_omni_moe_talker_code_predictor": _embedded,
    "speech-encoder-decoder": lambda config: {
        "inputs": noise(BATCH, 2000),
        "decoder_input_ids": tokens(seed=3),
    },
    "vibevoice_acoustic_tokenizer": lambda config: {"input_values": noise(BATCH, 1, 6400)},
    "voxtral_realtime": lambda config: {
        "input_ids": tokens(),
        "input_features": noise(BATCH, config.audio_config.num_mel_bins, 8 * LENGTH),
    },
    "voxtral_realtime_text": lambda config: {
        "input_ids": tokens(),
        "t_cond": noise(1, 1, config.hidden_size),
    },
    "musicgen": _musicgen,
    "musicgen_melody": _musicgen,
    "muse_spark_audio": lambda config: {"input_values": noise(BATCH, 3840)},
    "neucodec": _codec,
    "xcodec2": _codec,
    "vibevoice_acoustic_tokenizer_encoder": lambda config: {"hidden_states": noise(BATCH, 1, 6400)},
    "vibevoice_acoustic_tokenizer_decoder": lambda config: {
        "hidden_states": noise(BATCH, config.hidden_size, 2)
    },
    "vits": lambda config: {"input_ids": tokens() % config.vocab_size, "speaking_rate": 20.0},
    "qwen2_5_omni_bigvgan": lambda config: {"mel_spectrogram": noise(BATCH, config.mel_dim, 12)},
    "qwen2_5_omni_dit": _qwen2_5_omni_dit,
    "qwen2_5_omni_token2wav": _qwen2_5_omni_token2wav,
}
