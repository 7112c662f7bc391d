"""An int8 static cache, eager and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import npu_compile
from npu_compile.errors import AscendFiaError
from npu_compile.kv_quant import Int8StaticCache, KVScales, calibrate_kv
from tests.npu_compile.hf.models import build, prompts


def calibrated(model: Any) -> KVScales:
    return calibrate_kv(model, [torch.tensor([r]) for r in prompts(6, 60)], progress=False)


def decode(model: Any, forward: Any, scales: KVScales, steps: int = 4) -> torch.Tensor:
    """Logits of a prompt and of tokens after it."""
    tokens = torch.tensor([prompts(6, 60)[4]])
    cache = Int8StaticCache(model.config, 64, scales)
    with torch.no_grad():
        logits = [model(tokens[:, :-steps], cache=cache, use_cache=True).logits[:, -1]]
        for position in range(tokens.shape[1] - steps, tokens.shape[1]):
            step = tokens[:, position : position + 1]
            logits.append(forward(step, cache=cache, use_cache=True).logits[:, -1].clone())
    assert {layer.keys.dtype for layer in cache.layers} == {torch.int8}
    return torch.cat(logits)


def test_logits_keep_their_direction() -> None:
    model = build("llama", "sdpa")
    scales = calibrated(model)
    got = decode(model, model, scales)
    with torch.no_grad():
        wanted = model(torch.tensor([prompts(6, 60)[4]])).logits[0, -5:]
    assert not torch.equal(got, wanted)
    assert torch.nn.functional.cosine_similarity(got, wanted, -1).min() >= 0.999


def test_compiled_decoding_reads_int8() -> None:
    model = build("llama", "sdpa")
    scales = calibrated(model)
    wanted = decode(model, model, scales)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="ascend_fia", options={"kv_quant": "c8"}, fullgraph=True)
    torch.testing.assert_close(decode(model, compiled, scales), wanted, atol=1e-4, rtol=1e-4)
    report = npu_compile.last_report()
    assert not report.left
    notes = [note for graph in report.graphs for note in graph.notes]
    assert sum("read as int8" in note for note in notes) == 2 * len(report.graphs)


def test_models_it_is_not_for() -> None:
    scales = calibrated(build("llama", "sdpa"))
    with pytest.raises(AscendFiaError, match="layer_types"):
        Int8StaticCache(build("gemma3", "sdpa").config, 64, scales)
    config = build("llama", "sdpa").config
    config.num_hidden_layers = 3
    with pytest.raises(AscendFiaError, match=r"2 layers.*the model has 3 layers"):
        Int8StaticCache(config, 64, scales)
