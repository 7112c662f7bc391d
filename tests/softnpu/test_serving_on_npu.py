"""Continuous batching on device "npu" in bfloat16, its decode steps captured and replayed."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest
import torch
import transformers as hf

import npu_compile.hf
from npu_compile.runtime import captured
from tests.npu_compile.hf.drive import Engine
from tests.npu_compile.hf.models import batched, build, prompts
from tests.softnpu import softnpu

npu_compile.hf.register()

ENGINE = {"page_size": 128, "num_blocks": 20, "max_batch_tokens": 128}


@pytest.mark.parametrize("schedule", [None, 5], ids=["at once", "late and out of order"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_tokens_of_the_cpu(family: str, schedule: int | None) -> None:
    """The tokens that the same engine gives on the CPU, of graphs captured once per size."""
    torch.compiler.reset()
    gc.collect()
    model, requests = build(family, dtype=torch.bfloat16), prompts(5, 60)
    wanted = batched(model, requests, 8, **ENGINE)
    engine = Engine(
        model.to("npu"),
        requests,
        8,
        **ENGINE,
        max_requests_per_batch=8,
        decode_compile_config=hf.CompileConfig(backend="ascend_fia"),
    )
    with softnpu.lazy(schedule) if schedule else nullcontext(), softnpu.launches() as names:
        assert engine.run() == wanted
    # Padding rows write nothing, not even to the two sectors that no request is ever given.
    assert not engine.cache.cache_tensor[: 2 * engine.cache.bytes_per_sector].cpu().any()
    stats = [function.stats for function in captured._callables]
    assert all(s.captures == 1 and not s.fallbacks for s in stats)
    assert sum(s.replays for s in stats) >= 5
    assert sum(s.replays for s in stats) == sum(s.updates for s in stats)
    assert "npu::npu_scatter_pa_kv_cache" in names
    assert "npu::npu_fused_infer_attention_score.out" in names


def test_the_cache_fits_the_device() -> None:
    """A share of the device's free memory, not of the host's."""
    model = build("llama", dtype=torch.bfloat16).to("npu")
    free, _ = torch.npu.mem_get_info()
    engine = Engine(model, [[5, 6]], 2, page_size=128, max_batch_tokens=64, max_memory_percent=0.01)
    assert 0.5 * 0.01 * free < engine.cache.cache_tensor.numel() < 0.01 * free
