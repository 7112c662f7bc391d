"""generate_batch on "ascend_fia" gives the tokens that eager generate gives each request alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers as hf

import npu_compile.hf
from npu_compile.kernels.cpu.paging import Paged
from tests.npu_compile.hf.drive import Engine, Recorder
from tests.npu_compile.hf.models import FAMILIES, batched, build, prompts, sequential

npu_compile.hf.register()

NEW_TOKENS = 6


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_that_wait_for_blocks_and_lose_them(family: str) -> None:
    """Blocks of 16 for a quarter of what all requests need at once, prefill in chunks of 64 tokens."""
    model, requests = build(family), prompts()
    got = batched(model, requests, NEW_TOKENS, page_size=16, num_blocks=48, max_batch_tokens=64)
    assert got == sequential(model, requests, NEW_TOKENS)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_blocks_of_128(family: str) -> None:
    model, requests = build(family), prompts()
    got = batched(model, requests, NEW_TOKENS, page_size=128, num_blocks=16, max_batch_tokens=256)
    assert got == sequential(model, requests, NEW_TOKENS)


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("page_size", "num_blocks"), [(16, 400), (16, 24), (128, 4), (128, 50), (48, 20)])
def test_pools_and_pages(family: str, page_size: int, num_blocks: int) -> None:
    model, requests = build(family), prompts()
    got = batched(model, requests, 20, page_size=page_size, num_blocks=num_blocks, max_batch_tokens=200)
    assert got == sequential(model, requests, 20)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_blocks_full_of_nan_and_in_any_order(family: str) -> None:
    model, requests = build(family), prompts(12, 120)
    engine = Engine(model, requests, NEW_TOKENS, page_size=16, num_blocks=40, max_batch_tokens=64)
    engine.cache.cache_tensor.view(torch.float32).fill_(float("nan"))
    random.Random(3).shuffle(engine.cache.pool.free_sectors)
    assert engine.run() == sequential(model, requests, NEW_TOKENS)


def decode_steps(engine: Engine) -> Any:
    for step in engine.steps():
        if engine.decoding:
            recorder = Recorder()
            with recorder:
                step()
            yield recorder
        else:
            step()


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_copies_no_keys_and_values(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step calls FIA and the write once per layer, makes nothing as large as the keys it attends to, and
    reads just the tokens that the requests have."""
    model, requests = build(family), prompts(6, 300, shared=0)
    window = getattr(model.config, "sliding_window", None)
    layer_types = getattr(model.config, "layer_types", None) or ["sliding" if window else "full"] * 2
    engine = Engine(model, requests, 4, page_size=16, num_blocks=200, max_batch_tokens=2000)
    read: list[int] = []
    read_blocks = Paged.read
    monkeypatch.setattr(
        Paged, "read", lambda self, request: read.append(request.key.stop) or read_blocks(self, request)
    )
    lengths = [len(request) for request in requests]
    steps = 0
    for recorder in decode_steps(engine):
        lengths = [length + 1 for length in lengths]
        steps += 1
        fused = recorder.named("npu_fused_infer_attention_score")
        assert len(fused) == len(recorder.named("npu_scatter_pa_kv_cache")) == 2
        for (_, key, _), arguments in fused:
            assert arguments.get("sparse_mode", 0) == 0
            assert "atten_mask" not in arguments
            assert key.untyped_storage().data_ptr() == engine.cache.cache_tensor.untyped_storage().data_ptr()
        assert recorder.largest < sum(lengths) * 2 * 16
        seen = [
            sum(min(length, window) if "sliding" in kind else length for length in lengths)
            for kind in layer_types
        ]
        tensors = 3 if family == "deepseek_v3" else 2
        assert sum(read) == tensors * sum(seen)
        read.clear()
    assert steps == 3


def test_a_prefix_is_computed_once() -> None:
    """Later requests that begin as a finished one compute only what comes behind its full blocks."""
    model = build("llama")
    requests = [[*prompts(2, 90, shared=0)[1][:80], 5, index] for index in range(3, 8)]
    engine = Engine(model, requests[:1], NEW_TOKENS, page_size=16, num_blocks=100, max_batch_tokens=100)
    first = engine.run()
    engine.ids = engine.manager.add_requests(requests[1:], max_new_tokens=NEW_TOKENS)
    computed = 0
    for step in engine.steps():
        computed += engine.processor.inputs_and_outputs.num_q_tokens
        step()
    assert first + engine.results() == sequential(model, requests, NEW_TOKENS)
    assert computed == 4 * 2 + 4 * (NEW_TOKENS - 1)


def test_connector_is_called_around_each_write_and_attention() -> None:
    model, requests = build("gemma3"), prompts(3, 40)
    events: list[tuple[str, int]] = []

    class Connector:
        def wait(self, layer: int) -> None:
            events.append(("wait", layer))

        def written(self, layer: int) -> None:
            events.append(("written", layer))

        def save(self, layer: int) -> None:
            events.append(("save", layer))

    npu_compile.hf.use_kv_connector(model, Connector())
    engine = Engine(model, requests, 3, page_size=16, num_blocks=60, max_batch_tokens=100)
    steps = 0
    for step in engine.steps():
        with Recorder() as recorder:
            recorder.calls = _Joined(events)
            step()
        steps += 1
    layer = [("wait",), ("write",), ("written",), ("attend",), ("save",)]
    assert [event[:1] for event in events] == layer * 2 * steps
    assert [layer for name, layer in events if name == "save"] == [0, 1] * steps


class _Joined(list[Any]):
    """Puts the writes and attention calls of a recorder among a connector's events."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__()
        self.events = events

    def append(self, call: Any) -> None:
        if "npu_scatter_pa_kv_cache" in call[0]:
            self.events.append(("write", -1))
        elif "ascend_fia.npu_fused" in call[0]:
            self.events.append(("attend", -1))


def test_other_attention_implementations_keep_their_engine() -> None:
    model, requests = build("llama", attention="sdpa"), prompts(6, 60)
    engine = Engine(model, requests, NEW_TOKENS, page_size=16, num_blocks=40, max_batch_tokens=64)
    assert type(engine.cache).__name__ == "PagedAttentionCache"
    got = batched(model, requests, NEW_TOKENS, page_size=16, num_blocks=40, max_batch_tokens=64)
    assert got == sequential(model, requests, NEW_TOKENS)


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek_v3"])
def test_copies_of_a_request_go_their_own_way(family: str) -> None:
    """Forks share full blocks and copy the last one; this cold, all of them say the same."""
    model, requests = build(family), prompts(4, 60)
    config = hf.GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=1e-4,
        eos_token_id=-1,
        num_return_sequences=3,
    )
    outputs = model.generate_batch(
        requests,
        generation_config=config,
        continuous_batching_config=hf.ContinuousBatchingConfig(
            page_size=16, num_blocks=80, max_batch_tokens=64
        ),
    )
    wanted = [tokens for tokens in sequential(model, requests, NEW_TOKENS) for _ in range(3)]
    assert [output.generated_tokens for output in outputs.values()] == wanted
