"""Tiny random models of well-known families, made from their configurations alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

VOCABULARY = 97
_TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **_TEXT,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_BERT = {
    **_TEXT,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_SEQ2SEQ = {
    **_TEXT,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class Family:
    """One model type; ``sites`` is its number of attention computations in a forward.

    Whatever has an encoder and a decoder has two layers of each here: two sites in the encoder,
    a self and a cross attention in each layer of the decoder.
    """

    name: str
    model: Callable[..., Any]
    config: Callable[..., Any]
    sites: int
    kind: str

    @property
    def decoder_sites(self) -> int:
        return 4 if self.kind in ("speech", "seq2seq") else self.sites

    def build(self, attention: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
        config = self.config()
        torch.manual_seed(seed)
        return self.model._from_config(config, attn_implementation=attention).to(dtype).eval()


def _clip() -> Any:
    text = {**_BERT, "projection_dim": 32}
    return hf.CLIPConfig(text_config=text, vision_config={**_VISION, "projection_dim": 32}, projection_dim=32)


FAMILIES = {
    family.name: family
    for family in (
        Family("bert", hf.BertModel, lambda: hf.BertConfig(**_BERT), 2, "encoder"),
        Family("roberta", hf.RobertaModel, lambda: hf.RobertaConfig(**_BERT), 2, "encoder"),
        Family("vit", hf.ViTModel, lambda: hf.ViTConfig(**_VISION), 2, "vision"),
        Family("clip", hf.CLIPModel, _clip, 4, "clip"),
        Family(
            "gpt2",
            hf.GPT2LMHeadModel,
            lambda: hf.GPT2Config(**_TEXT, n_embd=64, n_layer=2, n_head=4, n_positions=128),
            2,
            "decoder",
        ),
        Family(
            "opt",
            hf.OPTForCausalLM,
            lambda: hf.OPTConfig(
                **_TEXT,
                hidden_size=64,
                ffn_dim=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                word_embed_proj_dim=64,
                max_position_embeddings=128,
            ),
            2,
            "decoder",
        ),
        Family("llama", hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**LLAMA), 2, "decoder"),
        Family(
            "mistral",
            hf.MistralForCausalLM,
            lambda: hf.MistralConfig(**LLAMA, sliding_window=5),
            2,
            "decoder",
        ),
        Family("qwen2", hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**LLAMA), 2, "decoder"),
        Family("qwen3", hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**LLAMA, head_dim=16), 2, "decoder"),
        Family("phi3", hf.Phi3ForCausalLM, lambda: hf.Phi3Config(**LLAMA), 2, "decoder"),
        Family("gemma", hf.GemmaForCausalLM, lambda: hf.GemmaConfig(**LLAMA, head_dim=16), 2, "decoder"),
        Family(
            "gemma3",
            hf.Gemma3ForCausalLM,
            lambda: hf.Gemma3TextConfig(
                **LLAMA,
                head_dim=16,
                sliding_window=5,
                query_pre_attn_scalar=16,
                layer_types=["sliding_attention", "full_attention"],
            ),
            2,
            "decoder",
        ),
        Family("gpt_neox", hf.GPTNeoXForCausalLM, lambda: hf.GPTNeoXConfig(**_BERT), 2, "decoder"),
        Family(
            "falcon",
            hf.FalconForCausalLM,
            lambda: hf.FalconConfig(
                **_TEXT,
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_kv_heads=2,
                new_decoder_architecture=True,
            ),
            2,
            "decoder",
        ),
        Family(
            "whisper",
            hf.WhisperForConditionalGeneration,
            lambda: hf.WhisperConfig(
                **{**_SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 17, "max_target_positions": 64}
            ),
            6,
            "speech",
        ),
        Family(
            "t5",
            hf.T5ForConditionalGeneration,
            lambda: hf.T5Config(
                **_TEXT, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=1
            ),
            6,
            "seq2seq",
        ),
        Family(
            "bart",
            hf.BartForConditionalGeneration,
            lambda: hf.BartConfig(**_SEQ2SEQ, max_position_embeddings=64),
            6,
            "seq2seq",
        ),
    )
}
