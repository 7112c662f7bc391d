"""Decode steps of the engine as captured graphs, padded to a few sizes and replayed."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import transformers as hf

import npu_compile.hf
import npu_compile.runtime
from npu_compile.runtime import captured
from tests.npu_compile.hf.drive import Engine
from tests.npu_compile.hf.models import build, prompts, sequential

npu_compile.hf.register()


@pytest.fixture(autouse=True)
def no_graphs_of_others() -> None:
    """Counts are of the test's own graphs."""
    torch._dynamo.reset()
    gc.collect()


def engine(model: Any, requests: list[list[int]], new_tokens: int, **options: Any) -> Engine:
    return Engine(
        model,
        requests,
        new_tokens,
        **{
            "page_size": 16,
            "num_blocks": 300,
            "max_batch_tokens": 256,
            "max_requests_per_batch": 16,
            "decode_compile_config": hf.CompileConfig(backend="ascend_fia"),
            **options,
        },
    )


def count(what: str) -> int:
    return sum(getattr(function.stats, what) for function in captured._callables)


def fallbacks() -> list[str]:
    return [reason for function in captured._callables for reason in function.stats.fallbacks]


def test_few_captures_for_many_steps() -> None:
    """Batches of 1 to 16, of which five sizes are captured, over 200 steps."""
    model, requests = build("llama"), prompts(28, 60)
    arrivals = {30: 15, 65: 3, 100: 6, 135: 2, 170: 1}
    running = engine(model, requests[:1], 40)
    arrived, steps, batches = 1, 0, set()
    for step in running.steps():
        step()
        steps += 1
        if running.decoding:
            batches.add(running.processor.inputs_and_outputs.num_request_in_batch)
        new = arrivals.get(steps, 0)
        if new:
            running.ids += running.manager.add_requests(requests[arrived : arrived + new], max_new_tokens=40)
            arrived += new
    assert steps >= 200
    assert batches >= {1, 2, 3, 6, 16}
    assert count("captures") == 5
    assert count("replays") >= 180
    assert fallbacks() == []
    got = running.results()
    for index in (0, 5, 17, 27):
        assert [got[index]] == sequential(model, [requests[index]], 40)


@pytest.mark.parametrize(
    "family", ["gemma3", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("gpt_oss", "deepseek_v3"))]
)
def test_families(family: str) -> None:
    model, requests = build(family), prompts(5, 100)
    running = engine(model, requests, 8)
    assert running.run() == sequential(model, requests, 8)
    assert count("replays") >= 4
    assert fallbacks() == []


@pytest.mark.parametrize(
    ("family", "width"),
    [("llama", 2 * 2 * 16), ("gemma3", 2 * 2 * 16), ("gpt_oss", 2 * 2 * 16), ("deepseek_v3", 32 + 8)],
)
def test_padding_rows_write_nothing(family: str, width: int) -> None:
    """Five requests in a graph for eight: of the whole memory, the numbers of five tokens change, ``width``
    for each of two layers, all of them in blocks of these requests."""
    model = build(family)
    running = engine(model, prompts(5, 60), 6)
    cache = running.cache
    never_allocated = cache.cache_tensor[: 2 * cache.bytes_per_sector]
    replayed = 0
    for step in running.steps():
        before = cache.cache_tensor.clone()
        replays = count("replays")
        step()
        if count("replays") == replays:
            continue
        replayed += 1
        changed = (before != cache.cache_tensor).view(-1, 4).any(1)
        assert int(changed.sum()) == 5 * 2 * width
        assert not never_allocated.any()
    assert replayed >= 3


def test_more_padding_than_a_block_has_tokens() -> None:
    model, requests = build("llama"), prompts(34, 20)
    running = engine(model, requests, 5, max_requests_per_batch=64, max_batch_tokens=512)
    assert running.run() == sequential(model, requests, 5)
    assert count("replays") >= 2
    assert fallbacks() == []


def test_new_weights_between_rollouts() -> None:
    """Capture, roll out, reset, write new weights, capture anew; prefixes of old weights aren't kept."""
    model, requests = build("llama"), prompts(4, 40)
    running = engine(model, requests, 6, allow_block_sharing=False)
    assert running.run() == sequential(model, requests, 6)
    first = count("captures")
    assert first > 0
    npu_compile.runtime.reset()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3)
    running.ids = running.manager.add_requests(requests, max_new_tokens=6)
    assert running.run() == sequential(model, requests, 6)
    assert count("captures") == 2 * first
    assert fallbacks() == []
