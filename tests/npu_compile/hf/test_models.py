"""Models on "ascend_fia" without the engine: forward, generate, torch.compile."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import npu_compile.hf
from npu_compile.hf.attention import FiaAttention
from tests.npu_compile.hf.drive import Recorder
from tests.npu_compile.hf.models import FAMILIES, VOCABULARY, build

npu_compile.hf.register()

FUSED = "ascend_fia.npu_fused_infer_attention_score"


def token_ids(batch: int = 3, length: int = 54) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def eager_and_fused(family: str, **inputs: Any) -> tuple[Tensor, Tensor, int]:
    """Logits of both, and how many fused calls there were."""
    model = build(family, "eager")
    with torch.no_grad():
        wanted = model(**inputs).logits
        model.set_attn_implementation("ascend_fia")
        with Recorder() as recorder:
            got = model(**inputs).logits
    return got, wanted, len(recorder.named(FUSED))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_forward(family: str, padding: str | None) -> None:
    mask = torch.ones(3, 54, dtype=torch.int64)
    if padding is not None:
        mask[1, :17] = 0
        mask[2, :1] = 0
        mask = mask if padding == "left" else mask.flip(1)
    got, wanted, calls = eager_and_fused(family, input_ids=token_ids(), attention_mask=mask)
    assert calls == 2
    kept = mask.bool()
    torch.testing.assert_close(got[kept], wanted[kept], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_from_padded_prompts(family: str, cache: str) -> None:
    model = build(family, "eager")
    mask = torch.ones(3, 54, dtype=torch.int64)
    mask[0, :20] = 0
    arguments = {
        "attention_mask": mask,
        "cache_implementation": cache,
        "max_new_tokens": 8,
        "do_sample": False,
        "disable_compile": True,
    }
    wanted = model.generate(token_ids(), **arguments)
    model.set_attn_implementation("ascend_fia")
    assert model.generate(token_ids(), **arguments).tolist() == wanted.tolist()


def test_an_encoder_sees_both_ways() -> None:
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = hf.BertModel(config).eval()
    mask = torch.ones(3, 54, dtype=torch.int64)
    mask[1, 30:] = 0
    results = []
    for attention in ("eager", "ascend_fia"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            results.append(model(token_ids(), attention_mask=mask).last_hidden_state[mask.bool()])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt_oss", marks=pytest.mark.nightly)])
def test_compiles_whole(family: str) -> None:
    model = build(family)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (54, 17):
            wanted = model(token_ids(length=length)).logits
            torch.testing.assert_close(compiled(token_ids(length=length)).logits, wanted)


def test_packed_requests_of_other_callers() -> None:
    """``cu_seq_lens_q`` and ``_k`` with a leading 0, as transformers' collators give them."""
    model = build("llama")
    first, second = token_ids(1, 17), token_ids(1, 54)
    ends = torch.tensor([0, 17, 71], dtype=torch.int32)
    with torch.no_grad():
        wanted = torch.cat([model(first).logits, model(second).logits], 1)
        got = model(
            torch.cat([first, second], 1),
            position_ids=torch.cat([torch.arange(17), torch.arange(54)]).unsqueeze(0),
            cu_seq_lens_q=ends,
            cu_seq_lens_k=ends,
            max_length_q=54,
            max_length_k=54,
        ).logits
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


class TestWhatFiaCannotDo:
    module = SimpleNamespace(is_causal=True, training=False)
    query = torch.randn(2, 4, 5, 16, generator=torch.Generator().manual_seed(0))

    def attend(self, **kwargs: Any) -> Tensor:
        mask = kwargs.pop("attention_mask", None)
        return FiaAttention()(self.module, self.query, self.query, self.query, mask, **kwargs)[0]

    @pytest.mark.parametrize(
        ("kwargs", "reason"),
        [
            ({"attention_mask": torch.zeros(2, 1, 5, 5)}, "attention_mask: torch.float32"),
            ({"attention_mask": torch.ones(2, 4, 5, 5, dtype=torch.bool)}, r"attention_mask: \(2, 4, 5, 5\)"),
            ({"position_bias": torch.zeros(1, 4, 5, 5)}, "position_bias"),
        ],
    )
    def test_left_to_sdpa(self, kwargs: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING), Recorder() as recorder:
            got = self.attend(**kwargs)
        assert not recorder.named(FUSED)
        assert re.search(reason, caplog.text)
        mask = kwargs.get("attention_mask")
        wanted = torch.nn.functional.scaled_dot_product_attention(
            self.query, self.query, self.query, mask, is_causal=mask is None
        )
        torch.testing.assert_close(got, wanted.transpose(1, 2))

    def test_sinks_are_not_dropped(self) -> None:
        with pytest.raises(ValueError, match="SDPA has no sinks"):
            self.attend(attention_mask=torch.zeros(2, 1, 5, 5), s_aux=torch.zeros(4))

    def test_gradients(self) -> None:
        query = self.query.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="no backward"):
            FiaAttention()(self.module, query, query, query)
