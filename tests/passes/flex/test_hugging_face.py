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
    # A cap that bends most scores of so small a model.
    "gemma2": hf.Gemma2Config(**TEXT, sliding_window=8, query_pre_attn_scalar=16, attn_logit_softcapping=0.2),
    "gemma3_text": hf.Gemma3TextConfig(
        **TEXT, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
}
IDS = torch.randint(3, 97, (2, 21), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(IDS).masked_fill(torch.arange(21) < torch.tensor([[5], [0]]), 0)


def model(name: str, attention: str = "flex_attention") -> Any:
    torch.manual_seed(0)
    return hf.AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention).eval()


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
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gemma2", "gemma3_text"))]
)
def test_models(name: str, case: str) -> None:
    expected = logits(name, "eager", case)
    got = logits(name, "ascend_fia", case)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
    sites = npu_compile.last_report().sites
    assert len(sites) >= 2 and all(site.lowered for site in sites)
    if case == "static":
        assert {site.sparse_mode for site in sites} <= {0, 2, 4}


@pytest.mark.parametrize(
    ("dtype", "padded", "atol"),
    [
        # Its softmax is in float32.
        (torch.float64, False, 1e-6),
        # In float64 its mask is beyond float32, and padded rows NaN.
        pytest.param(torch.float32, True, 1e-5, marks=pytest.mark.nightly),
    ],
)
def test_soft_capped_scores_are_those_of_the_eager_model(
    dtype: torch.dtype, padded: bool, atol: float
) -> None:
    """Against the attention that transformers writes by hand, uncompiled."""
    given = {"attention_mask": PADDED} if padded else {}
    results = []
    for attention in ("eager", "flex_attention"):
        torch._dynamo.reset()
        one = model("gemma2", attention).to(dtype)
        run = torch.compile(one, backend="ascend_fia") if attention == "flex_attention" else one
        with torch.no_grad():
            results.append(run(IDS, use_cache=False, **given).logits[PADDED.bool()])
    torch.testing.assert_close(results[1], results[0], atol=atol, rtol=0)
    sites = npu_compile.last_report().sites
    assert [site.op for site in sites] == ["softcap_attention"] * 2
    assert {site.num_key_value_heads for site in sites} == {2}
