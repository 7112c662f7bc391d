"""Tiny models whose layers alternate between a window and full attention, with sinks in every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

import npu_compile
from tests.models import cases
from tests.models.cases import Case
from tests.models.tiny import VOCABULARY, Family


def model(attention: str) -> Any:
    config = hf.GptOssConfig(
        vocab_size=VOCABULARY,
        pad_token_id=0,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=5,
        num_local_experts=2,
        num_experts_per_tok=2,
        max_position_embeddings=128,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    made = hf.GptOssForCausalLM._from_config(config, attn_implementation=attention).eval()
    made.set_experts_implementation("batched_mm")
    for layer in made.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    return made


GPT_OSS = Family("gpt_oss", hf.GptOssForCausalLM, hf.GptOssConfig, 2, "decoder")


@pytest.mark.parametrize(
    "case",
    [
        cases.prefill,
        cases.left_padded,
        cases.static_decode,
        cases.dynamic_decode,
        cases.chunked_prefill,
        cases.generate_static,
    ],
    ids=lambda case: case.__name__,
)
def test_gpt_oss(case: Case) -> None:
    torch._dynamo.reset()
    plain = model("eager")
    with torch.no_grad():
        expected = case(GPT_OSS, plain, plain.forward)
        got = case(GPT_OSS, plain, torch.compile(plain.forward, backend="ascend_fia", fullgraph=True))
    for one, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=0)
        assert torch.equal(one.argmax(-1), wanted.argmax(-1))
    report = npu_compile.last_report()
    assert [site.reason for site in report.left] == []
    assert len(report.sites) % 2 == 0 and report.sites


def granite() -> Any:
    config = hf.GraniteSWAConfig(
        vocab_size=VOCABULARY,
        pad_token_id=0,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=5,
        max_position_embeddings=128,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    made = hf.GraniteSWAForCausalLM._from_config(config, attn_implementation="eager").eval()
    for layer in made.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([1.0, 2.0, 0.5, -1.0]))
    return made


GRANITE = Family("granite_swa", granite, dict, 2, "decoder")


@pytest.mark.skipif(not hasattr(hf, "GraniteSWAConfig"), reason="not in this release of transformers")
@pytest.mark.parametrize(
    "case", [cases.left_padded, cases.static_decode, cases.chunked_prefill], ids=lambda case: case.__name__
)
def test_granite_whose_sinks_join_behind_v(case: Case) -> None:
    torch._dynamo.reset()
    plain = granite()
    with torch.no_grad():
        expected = case(GRANITE, plain, plain.forward)
        got = case(GRANITE, plain, torch.compile(plain.forward, backend="ascend_fia", fullgraph=True))
    for one, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=0)
        assert torch.equal(one.argmax(-1), wanted.argmax(-1))
    report = npu_compile.last_report()
    assert [site.reason for site in report.left] == []
    assert len(report.sites) % 2 == 0 and report.sites


def test_decoding_under_capture() -> None:
    """The length of each step reaches calls whose sink joins by the log-sum-exp."""
    torch._dynamo.reset()
    plain = model("eager")
    options = {"capture": True}
    forward = torch.compile(plain.forward, backend="ascend_fia", fullgraph=True, options=options)
    with torch.no_grad():
        expected = cases.static_decode(GPT_OSS, plain, plain.forward)
        got = cases.static_decode(GPT_OSS, plain, forward)
    for one, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-4, rtol=0)
    report = npu_compile.last_report()
    assert [site.reason for site in report.left] == []
    assert any(site.lengths and site.cache == "static" for site in report.sites)
