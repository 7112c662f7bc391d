"""Tiny random models of the families that the engine is tested on, and requests of very different lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

VOCABULARY = 97
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_WINDOW = {"sliding_window": 23, "layer_types": ["sliding_attention", "full_attention"]}


def _llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_COMMON))


def _qwen3() -> Any:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_COMMON, head_dim=32))


def _mistral() -> Any:
    return hf.MistralForCausalLM(hf.MistralConfig(**_COMMON, sliding_window=23))


def _gemma3() -> Any:
    config = hf.Gemma3TextConfig(**_COMMON, head_dim=16, query_pre_attn_scalar=20, **_WINDOW)
    return hf.Gemma3ForCausalLM(config)


def _gpt_oss() -> Any:
    config = hf.GptOssConfig(**_COMMON, head_dim=16, num_local_experts=3, num_experts_per_tok=2, **_WINDOW)
    model = hf.GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def _deepseek_v3() -> Any:
    config = hf.DeepseekV3Config(
        **{**_COMMON, "num_attention_heads": 3, "num_key_value_heads": 3},
        q_lora_rank=24,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=20,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    )
    return hf.DeepseekV3ForCausalLM(config)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "mistral": _mistral,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
}


def build(family: str, attention: str = "ascend_fia", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[family]().to(dtype).eval()
    # Initialised as they are, all tokens look alike to these models; larger weights tell them apart.
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "embed" not in name:
            weight.data.mul_(3)
    model.set_attn_implementation(attention)
    return model


def prompts(count: int = 24, longest: int = 300, shared: int = 40) -> list[list[int]]:
    """Token ids of ``count`` requests with 1 to ``longest`` tokens; a third begin with the same ones."""
    generator = torch.Generator().manual_seed(7)
    prefix = torch.randint(3, VOCABULARY, (shared,), generator=generator).tolist()
    requests = []
    for index in range(count):
        length = 1 + index * (longest - 1) // (count - 1)
        tokens = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        requests.append(prefix[:length] + tokens[shared:] if index % 3 == 0 else tokens)
    return requests


def sequential(model: Any, requests: list[list[int]], new_tokens: int) -> list[list[int]]:
    """What eager ``generate()`` appends to each request on its own."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    config = hf.GenerationConfig(
        max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    with torch.no_grad():
        outputs = [model.generate(torch.tensor([r]), generation_config=config)[0] for r in requests]
    model.set_attn_implementation(before)
    return [out[len(r) :].tolist() for out, r in zip(outputs, requests, strict=True)]


def batched(model: Any, requests: list[list[int]], new_tokens: int, **engine: Any) -> list[list[int]]:
    """What ``generate_batch`` appends; ``engine`` are arguments of ContinuousBatchingConfig."""
    config = hf.GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
    outputs = model.generate_batch(
        requests,
        generation_config=config,
        continuous_batching_config=hf.ContinuousBatchingConfig(**engine),
    )
    errors = [out.error for out in outputs.values() if out.error]
    assert not errors, errors
    assert len(outputs) == len(requests)
    return [out.generated_tokens for out in outputs.values()]
