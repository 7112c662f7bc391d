"""transformers as the host: generate() in its ways, pipelines, exported programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, CompileConfig, PreTrainedTokenizerFast, pipeline

import npu_compile
from tests.models.tiny import FAMILIES, VOCABULARY

PROMPTS = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))


def tokens(model: Any, prompts: torch.Tensor = PROMPTS, **options: Any) -> torch.Tensor:
    torch._dynamo.reset()
    found: torch.Tensor = model.generate(prompts, max_new_tokens=10, do_sample=False, **options)
    return found


def compiled(name: str, attention: str = "sdpa") -> Any:
    model = FAMILIES[name].build(attention)
    model.forward = torch.compile(model.forward, backend="ascend_fia")
    return model


def assert_all_lowered() -> None:
    report = npu_compile.last_report()
    assert report.sites and not report.left


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_compile_config(name: str, attention: str) -> None:
    """generate() compiles the decode step itself; its default mode captures it.

    transformers compiles by itself on some devices only; the private switch is its own way to ask for all.
    """
    model = FAMILIES[name].build(attention)
    expected = tokens(model, cache_implementation="static", disable_compile=True)
    config = CompileConfig(backend="ascend_fia")
    config._compile_all_devices = True
    got = tokens(model, cache_implementation="static", compile_config=config)
    assert torch.equal(got, expected)
    assert_all_lowered()
    for graph in npu_compile.last_report().graphs:
        assert graph.capture is not None and graph.capture.refusal is None


@pytest.mark.parametrize("cache", ["dynamic", "static", "hybrid"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_caches(name: str, cache: str) -> None:
    expected = tokens(FAMILIES[name].build("sdpa"), cache_implementation=cache, disable_compile=True)
    got = tokens(compiled(name), cache_implementation=cache, disable_compile=True)
    assert torch.equal(got, expected)
    assert_all_lowered()


def test_assisted_decoding_checks_several_tokens_in_a_step() -> None:
    model = FAMILIES["llama"].build("sdpa")
    expected = tokens(model, PROMPTS[:1])
    assert torch.equal(tokens(compiled("llama"), PROMPTS[:1], assistant_model=model), expected)
    assert_all_lowered()
    assert any(site.query_len not in ("1", "9") for site in npu_compile.last_report().sites)


def test_prompt_lookup() -> None:
    repeated = torch.cat([PROMPTS[:1], PROMPTS[:1, :5]], 1)
    expected = tokens(FAMILIES["llama"].build("sdpa"), repeated)
    assert torch.equal(tokens(compiled("llama"), repeated, prompt_lookup_num_tokens=3), expected)
    assert_all_lowered()


def test_beams() -> None:
    expected = tokens(FAMILIES["llama"].build("sdpa"), num_beams=3)
    assert torch.equal(tokens(compiled("llama"), num_beams=3), expected)
    assert_all_lowered()


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnop"])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def test_a_pipeline_of_an_encoder() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertModel(BertConfig(vocab_size=VOCABULARY, **sizes)).eval()
    texts = ["a b c d e f", "g h", "i j k l m n o p a"]

    def features() -> list[torch.Tensor]:
        run = pipeline("feature-extraction", model=model, tokenizer=tokenizer(), device="cpu")
        return [found[0] for found in run(texts, batch_size=3, return_tensors=True)]

    expected = features()
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="ascend_fia")
    for got, want in zip(features(), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert_all_lowered()


def test_an_exported_program() -> None:
    model = FAMILIES["bert"].build("sdpa")
    exported = torch.export.export(model, (PROMPTS,), strict=False)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(exported.module(), backend="ascend_fia")(PROMPTS)[0]
        torch.testing.assert_close(got, model(PROMPTS)[0], atol=1e-5, rtol=0)
    assert_all_lowered()
