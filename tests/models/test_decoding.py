"""Long decoding with static caches: two graphs, whole graphs, the cache read in place."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import StaticCache

import npu_compile
from tests.models.cases import ids
from tests.models.tiny import FAMILIES

STEPS = 200


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_two_graphs_serve_200_steps(name: str) -> None:
    torch._dynamo.reset()
    model = FAMILIES[name].build("sdpa")
    forward = torch.compile(model.forward, backend="ascend_fia", fullgraph=True)
    caches = [StaticCache(config=model.config, max_cache_len=17 + STEPS) for _ in range(2)]
    with torch.no_grad():
        token = ids()
        for step in range(STEPS):
            expected = model(input_ids=token, cache=caches[0], use_cache=True).logits[:, -1:]
            actual = forward(input_ids=token, cache=caches[1], use_cache=True).logits[:, -1:]
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0, msg=f"step {step}")
            token = expected.argmax(-1)
    assert len(npu_compile.last_report().graphs) == 2


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_whole_graphs_where_eager_has_whole_graphs(name: str) -> None:
    """``fullgraph=True`` works wherever it works with ``backend="eager"``."""
    family = FAMILIES[name]
    if family.kind not in ("decoder", "encoder"):
        pytest.skip("covered by the family's own cases")
    model = family.build("sdpa")
    worked = []
    for backend in ("eager", "ascend_fia"):
        torch._dynamo.reset()
        try:
            with torch.no_grad():
                torch.compile(model.forward, backend=backend, fullgraph=True)(input_ids=ids())
            worked.append(True)
        except torch._dynamo.exc.Unsupported:
            worked.append(False)
    assert worked[0] == worked[1]


def test_decode_reads_the_cache_without_copies() -> None:
    """No operator of the decode graph makes a tensor as large as the cache."""
    torch._dynamo.reset()
    model = FAMILIES["llama"].build("sdpa")
    capacity = 4096
    cache = StaticCache(config=model.config, max_cache_len=capacity)
    forward = torch.compile(model.forward, backend="ascend_fia")
    with torch.no_grad():
        forward(input_ids=ids(), cache=cache, use_cache=True)
        forward(input_ids=ids(length=1), cache=cache, use_cache=True)
        with torch.profiler.profile(profile_memory=True) as profile:
            forward(input_ids=ids(length=1), cache=cache, use_cache=True)
    largest = max(event.cpu_memory_usage for event in profile.events())
    one_layer = cache.layers[0].keys.numel() * 4
    assert largest < one_layer / 8


def test_no_more_graphs_than_eager() -> None:
    counts = []
    for backend in ("eager", "ascend_fia"):
        torch._dynamo.reset()
        model = FAMILIES["mistral"].build("sdpa")
        counter = CompileCounter()
        cache = StaticCache(config=model.config, max_cache_len=32)
        if backend == "eager":
            forward = torch.compile(model.forward, backend=counter)
        else:
            forward = torch.compile(model.forward, backend="ascend_fia")
        with torch.no_grad():
            for tokens in (ids(), *ids(length=9, seed=4).split(1, 1)):
                forward(input_ids=tokens, cache=cache, use_cache=True)
        counts.append(counter.frame_count if backend == "eager" else len(npu_compile.last_report().graphs))
    assert counts[1] <= counts[0]
