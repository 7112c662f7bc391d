"""Hugging Face models decoding with static caches, eagerly and through captured graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

from npu_compile.options import Options
from npu_compile.pipeline import run_passes, target_of
from npu_compile.runtime import CapturedCallable, CaptureOptions, capture

VOCABULARY, CAPACITY = 97, 80
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}


def tiny_model(family: str) -> PreTrainedModel:
    """A random model with two layers; Gemma's alternate windows of 17 keys with full attention."""
    torch.manual_seed(7)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SIZES)).eval()
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SIZES)).eval()
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**_SIZES)).eval()
    kinds = ["sliding_attention", "full_attention"]
    if family == "gemma2":
        capped = Gemma2Config(
            **_SIZES,
            sliding_window=17,
            layer_types=kinds,
            attn_logit_softcapping=0.5,
            query_pre_attn_scalar=16,
        )
        return Gemma2ForCausalLM._from_config(capped, attn_implementation="eager").eval()
    return Gemma3ForCausalLM(Gemma3TextConfig(**_SIZES, sliding_window=17, layer_types=kinds)).eval()


@dataclass
class CapturingBackend:
    """A dynamo backend that captures what it lowers, and keeps the captured callables."""

    options: CaptureOptions = field(default_factory=lambda: CaptureOptions(on_refusal="error"))
    functions: list[CapturedCallable] = field(default_factory=list)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CapturedCallable:
        compiled = run_passes(gm, example_inputs, target_of(example_inputs, Options()))
        self.functions.append(capture(compiled.module, self.options))
        return self.functions[-1]


@dataclass(frozen=True)
class Decoded:
    """``logits`` (steps, B, vocabulary) float32 on the CPU, and ``tokens`` (steps, B)."""

    logits: Tensor
    tokens: Tensor


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    step: Callable[..., Any],
    prompt: Tensor,
    steps: int,
    forced: Tensor | None = None,
    cache: StaticCache | None = None,
) -> Decoded:
    """Prefill eagerly, then ``steps`` single-token steps through ``step``.

    Greedy, or along ``forced`` tokens (steps, B), which keeps two runs comparable.
    """
    device = model.device
    cache = cache or StaticCache(config=model.config, max_cache_len=CAPACITY)
    logits = model(prompt.to(device), past_key_values=cache, use_cache=True).logits[:, -1]
    collected = []
    for index in range(steps):
        collected.append(logits)
        following = logits.argmax(-1) if forced is None else forced[index].to(device)
        logits = step(input_ids=following[:, None], past_key_values=cache, use_cache=True).logits[:, -1]
    all_logits = torch.stack([logits.float().cpu() for logits in collected])
    return Decoded(all_logits, all_logits.argmax(-1))


def prompt_of(batch: int, length: int = 5) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(batch))
