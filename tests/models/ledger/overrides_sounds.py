"""What tiny configurations of some types of sounds need beyond the rules."""

from __future__ import annotations

from typing import Any

SPECTRUM = {"spec_size": 64, "depths": [1, 1], "num_attention_heads": [2, 4], "patch_embeds_hidden_size": 32}
CODEC = {"quantization_dim": 128, "encoder_hidden_size": 8}
WAVES = {"num_filters": 4, "depths": [1, 1, 1, 1, 1, 1, 1]}

SOUNDS: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64},
    "clvp": {name: {"hidden_size": 128} for name in ("text_config", "speech_config")},
    "fastspeech2_conformer_with_hifigan": {"model_config": {"num_mel_bins": 80}},
    "dots3_note_audio_encoder": {"adapter_input_size": 64},
    "clap": {"audio_config": SPECTRUM},
    "clap_audio_model": SPECTRUM,
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "vibevoice": {"audio_config": WAVES, "semantic_model_config": WAVES},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": WAVES,
        "semantic_tokenizer_encoder_config": WAVES,
    },
    "vibevoice_acoustic_tokenizer": WAVES,
    "vibevoice_acoustic_tokenizer_encoder": WAVES,
    "vibevoice_acoustic_tokenizer_decoder": WAVES,
    "moonshine_streaming": {"num_key_value_heads": 4},
    "csm_depth_decoder_model": {"num_codebooks": 10},
    "moshi_depth": {"num_codebooks": 10},
    "mimi": {"vector_quantization_hidden_dimension": 64, "num_filters": 8},
    "muse_spark_audio": {"hidden_sizes": [8, 16, 32, 64]},
    "kyutai_speech_to_text": {"codec_config": {"num_filters": 8}},
    "neucodec": CODEC,
    "xcodec2": CODEC,
    "phi4_multimodal_audio": {
        "ext_pw_out_channel": 64,
        "depthwise_separable_out_channel": 64,
        "nemo_conv_channels": 64,
    },
    "qwen2_5_omni_bigvgan": {"upsample_initial_channel": 128},
    "qwen2_5_omni_token2wav": {"bigvgan_config": {"upsample_initial_channel": 128}},
    "qwen2_5_omni": {"token2wav_config": {"bigvgan_config": {"upsample_initial_channel": 128}}},
    "qwen3_omni_moe_audio_encoder": {"n_window": 50, "n_window_infer": 100},
    "qwen3_asr_encoder": {"n_window": 50, "n_window_infer": 100},
    "qwen3_omni_moe": {
        "talker_config": {"text_config": {"shared_expert_intermediate_size": 96}, "spatial_merge_size": 2}
    },
    "xcodec": {"codebook_dim": 128},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 96},
}
