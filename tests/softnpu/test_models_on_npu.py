"""Unmodified Hugging Face models on device "npu" in bfloat16, lowered, with and without capture."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from npu_compile import last_report
from tests.npu_compile.runtime.capturing import CapturingBackend, Decoded, decode, prompt_of, tiny_model
from tests.softnpu import softnpu

STEPS, BATCH, LAYERS = 24, 2, 2
NEAR_TIE = 0.02
"""Tokens are compared where the two best logits are further apart than this."""
CAPTURE = [pytest.param(False, id="eager"), pytest.param(True, id="capture")]


def compiled_on_npu(model: PreTrainedModel, captured: bool, **options: Any) -> tuple[Any, CapturingBackend]:
    """``model`` compiled for the device it is on, and the backend that holds what was captured."""
    torch.compiler.reset()
    backend = CapturingBackend()
    return torch.compile(model, backend=backend if captured else "ascend_fia", **options), backend


def assert_captured(backend: CapturingBackend, calls: int) -> None:
    """Every call but the first of each graph was one replay, with one update where there is attention."""
    stats = [function.stats for function in backend.functions]
    assert sum(s.warmups + s.replays for s in stats) == calls
    assert all(s.captures == 1 and not s.fallbacks for s in stats)
    assert all(s.updates in (0, s.replays) for s in stats)
    assert any(s.updates for s in stats)


def assert_all_lowered() -> None:
    report = last_report()
    assert report.lowered
    assert not report.left
    assert {graph.target for graph in report.graphs} == {"ascend910b"}


def assert_as_good_as_plain_bfloat16(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    """At most twice the error of the model in plain bfloat16 on the CPU, and one rounding of the result."""
    error = (got.double() - exact.double()).abs().max()
    plain_error = (plain.double() - exact.double()).abs().max()
    rounding = exact.abs().max().double() * 2**-8
    assert error <= 2 * plain_error + rounding, f"{error} > 2 * {plain_error}"


def assert_tokens(got: Decoded, plain: Decoded) -> None:
    best = plain.logits.topk(2, -1).values
    clear = best[..., 0] - best[..., 1] > NEAR_TIE
    assert clear.float().mean() > 0.3
    assert torch.equal(got.tokens[clear], plain.tokens[clear])


@pytest.mark.parametrize("captured", CAPTURE)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_decoding(family: str, captured: bool) -> None:
    model = tiny_model(family)
    exact = decode(model, model, prompt_of(BATCH), STEPS)
    model = model.to(torch.bfloat16)
    plain = decode(model, model, prompt_of(BATCH), STEPS, forced=exact.tokens)
    model = model.to("npu")
    compiled, backend = compiled_on_npu(model, captured, fullgraph=True)
    with softnpu.launches() as names:
        got = decode(model, compiled, prompt_of(BATCH), STEPS, forced=exact.tokens)
    assert_as_good_as_plain_bfloat16(got.logits, plain.logits, exact.logits)
    assert_tokens(got, plain)
    assert sum("fused_infer_attention_score" in name for name in names) >= STEPS * LAYERS
    assert_captured(backend, STEPS) if captured else assert_all_lowered()


@pytest.mark.parametrize("captured", CAPTURE)
def test_soft_capped_decoding(captured: bool) -> None:
    """Gemma 2: a decomposition whose lengths stay on the device, so a replay has nothing to update.

    As long as the window is not full its layer counts on the host, and no two steps are alike.
    """
    model = tiny_model("gemma2")
    exact = decode(model, model, prompt_of(BATCH), STEPS)
    model = model.to(torch.bfloat16)
    plain = decode(model, model, prompt_of(BATCH), STEPS, forced=exact.tokens)
    model = model.to("npu")
    compiled, backend = compiled_on_npu(model, captured, fullgraph=True)
    got = decode(model, compiled, prompt_of(BATCH), STEPS, forced=exact.tokens)
    assert_as_good_as_plain_bfloat16(got.logits, plain.logits, exact.logits)
    assert_tokens(got, plain)
    if captured:
        stats = [function.stats for function in backend.functions]
        assert sum(s.warmups + s.replays + s.fallbacks.total() for s in stats) == STEPS
        assert not any(s.updates for s in stats)
        assert (stats[-1].captures, stats[-1].replays) == (1, 11)
    else:
        assert_all_lowered()
        assert {site.op for site in last_report().sites} == {"softcap_attention"}


@pytest.fixture(scope="module")
def captured_llama() -> Iterator[tuple[PreTrainedModel, Any, Decoded]]:
    """A captured llama on the NPU, and what it gives in an ordinary schedule."""
    model = tiny_model("llama").to("npu", torch.bfloat16)
    compiled, _ = compiled_on_npu(model, captured=True, fullgraph=True)
    yield model, compiled, decode(model, compiled, prompt_of(BATCH), 5)
    torch.compiler.reset()


@pytest.mark.parametrize("seed", range(1, 31))
def test_decoding_under_lazy_schedules(
    seed: int, captured_llama: tuple[PreTrainedModel, Any, Decoded]
) -> None:
    model, compiled, expected = captured_llama
    with softnpu.lazy(seed):
        got = decode(model, compiled, prompt_of(BATCH), 5, forced=expected.tokens)
    torch.testing.assert_close(got.logits, expected.logits, atol=0, rtol=0)


def test_the_mode() -> None:
    """What a user writes, and what the report says of it."""
    torch.compiler.reset()
    model = tiny_model("llama").to("npu", torch.bfloat16)
    expected = decode(model, model, prompt_of(BATCH), 6)
    compiled = torch.compile(model, backend="ascend_fia", mode="reduce-overhead", fullgraph=True)
    with softnpu.launches() as names:
        got = decode(model, compiled, prompt_of(BATCH), 6, forced=expected.tokens)
    assert torch.equal(got.tokens, expected.tokens)
    assert names.count("npu::npu_fused_infer_attention_score.out") == LAYERS * (1 + 5)
    (graph,) = last_report().graphs
    assert graph.capture is not None
    assert graph.capture.refusal is None
    assert [row[:2] for row in graph.capture.update_plan] == [
        (str(layer), "npu_fused_infer_attention_score") for layer in range(LAYERS)
    ]


@pytest.mark.parametrize("captured", CAPTURE)
def test_bert(captured: bool) -> None:
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(vocab_size=97, **sizes)).eval()
    ids = torch.randint(1, 97, (3, 17))
    mask = (torch.arange(17) < torch.tensor([[17], [9], [4]])).long()
    with torch.no_grad():
        exact = model(ids, attention_mask=mask).last_hidden_state
        model = model.to(torch.bfloat16)
        plain = model(ids, attention_mask=mask).last_hidden_state
        model = model.to("npu")
        compiled, backend = compiled_on_npu(model, captured, fullgraph=True)
        for _ in range(3):
            got = compiled(ids.npu(), attention_mask=mask.npu()).last_hidden_state.cpu()
    valid = mask.bool()
    assert_as_good_as_plain_bfloat16(got[valid], plain[valid], exact[valid])
    assert_captured(backend, 3) if captured else assert_all_lowered()


@pytest.mark.parametrize("captured", CAPTURE)
def test_whisper(captured: bool) -> None:
    torch.manual_seed(4)
    config = WhisperConfig(
        vocab_size=97,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_mel_bins=8,
        max_source_positions=30,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = WhisperForConditionalGeneration(config).eval()
    features, ids = torch.randn(2, 8, 60), torch.randint(3, 97, (2, 9))
    with torch.no_grad():
        exact = model(input_features=features, decoder_input_ids=ids).logits
        model = model.to(torch.bfloat16)
        plain = model(input_features=features.bfloat16(), decoder_input_ids=ids).logits
        model = model.to("npu")
        compiled, backend = compiled_on_npu(model, captured, fullgraph=True)
        for _ in range(3):
            got = compiled(input_features=features.npu().bfloat16(), decoder_input_ids=ids.npu()).logits.cpu()
    assert_as_good_as_plain_bfloat16(got, plain, exact)
    assert_captured(backend, 3) if captured else assert_all_lowered()
