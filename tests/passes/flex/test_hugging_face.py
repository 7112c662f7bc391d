"""Models with attn_implementation="flex_attention", against torch's own flex_attention (backend "eager")."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

import npu_compile

TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
CONFIGS = {
    "llama": hf.LlamaConfig(**TEXT),
    "gemma3_text": hf.Gemma3TextConfig(
        **TEXT, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}
IDS = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(IDS).masked_fill(torch.arange(21) < torch.tensor([[5], [0]]), 0)


def model(name: str) -> Any:
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="flex_attention").eval()


def logits(name: str, backend: str, case: str) -> list[torch.Tensor]:
    torch._dynamo.reset()
    one = model(name)
    run = torch.compile(one, backend=backend)
    with torch.no_grad():
        if case != "static":
            given = {"attention_mask": PADDED} if case == "padded" else {}
            return [run(IDS, use_cache=False, **given).logits[PADDED.bool()]]
        cache = hf.StaticCache(one.config, max_cache_len=32)
        steps = [IDS, *IDS[:, :4].split(1, 1)]
        return [run(tokens, past_key_values=cache).logits for tokens in steps]


@pytest.mark.parametrize("case", [pytest.param("prefill", marks=pytest.mark.nightly), "padded", "static"])
@pytest.mark.parametrize("name", ["llama", pytest.param("gemma3_text", marks=pytest.mark.nightly)])
def test_models(name: str, case: str) -> None:
    expected = logits(name, "eager", case)
    got = logits(name, "ascend_fia", case)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    sites = npu_compile.last_report().sites
    assert len(sites) >= 2 and all(site.lowered for site in sites)
    if case == "static":
        assert {site.sparse_mode for site in sites} <= {0, 2, 4}


@pytest.mark.nightly
def test_soft_capped_models_are_left_with_the_reason() -> None:
    config = hf.Gemma2Config(**TEXT, sliding_window=8, attn_logit_softcapping=5.0)
    torch.manual_seed(0)
    one = hf.AutoModelForCausalLM.from_config(config, attn_implementation="flex_attention").eval()
    with torch.no_grad():
        torch._dynamo.reset()
        expected = torch.compile(one, backend="eager")(IDS, use_cache=False).logits
        torch._dynamo.reset()
        got = torch.compile(one, backend="ascend_fia")(IDS, use_cache=False).logits
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    sites = npu_compile.last_report().sites
    assert len(sites) == 2 and all("soft-capped" in str(site.reason) for site in sites)
