"""The engine where something just fits, just doesn't, goes away in the middle, or isn't alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf

import npu_compile.hf
from tests.npu_compile.hf.drive import Engine
from tests.npu_compile.hf.models import VOCABULARY, batched, build, sequential

npu_compile.hf.register()


def requests_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def captured(model: Any, requests: list[list[int]], new_tokens: int, **options: Any) -> Engine:
    compiled = hf.CompileConfig(backend="ascend_fia")
    sizes = {"page_size": 16, "num_blocks": 60, "max_batch_tokens": 64, "max_requests_per_batch": 16}
    return Engine(model, requests, new_tokens, **{**sizes, **options}, decode_compile_config=compiled)


@pytest.fixture(autouse=True)
def compiled_anew() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "family",
    ["deepseek_v3", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("llama", "gemma3", "gpt_oss"))],
)
def test_prompts_that_fill_blocks(family: str) -> None:
    """One token, and up to, exactly and beyond one and two blocks."""
    model, requests = build(family), requests_of(1, 1, 15, 16, 17, 31, 32, 33)
    assert captured(model, requests, 4).run() == sequential(model, requests, 4)


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("gemma3", "deepseek_v3"))]
)
def test_requests_lose_their_blocks_between_captured_steps(family: str) -> None:
    """A pool for about half of what the requests grow to."""
    model, requests = build(family), requests_of(30, 40, 20, 50, 10, 45)
    running = captured(model, requests, 40, num_blocks=14 if family != "gemma3" else 20)
    assert running.run() == sequential(model, requests, 40)


def test_more_requests_than_a_batch_takes() -> None:
    model, requests = build("llama"), requests_of(*range(1, 9))
    assert captured(model, requests, 5, max_requests_per_batch=3).run() == sequential(model, requests, 5)


def test_two_engines_of_one_model_take_turns() -> None:
    """Each has a cache of its own, with pages of its own size."""
    model, requests, others = build("llama"), requests_of(5, 30, 17), requests_of(9, 21)
    engines = captured(model, requests, 8), captured(model, others, 8, page_size=32)
    running = [engine.steps() for engine in engines]
    while running:
        for steps in list(running):
            step = next(steps, None)
            if step is None:
                running.remove(steps)
            else:
                step()
    assert engines[0].results() == sequential(model, requests, 8)
    assert engines[1].results() == sequential(model, others, 8)


def test_a_request_is_cancelled() -> None:
    model, requests = build("llama"), requests_of(3, 20, 33, 50)
    running = captured(model, requests, 15)
    for number, step in enumerate(running.steps()):
        step()
        if number == 8:
            running.manager.cancel_request(running.ids[1])
    found = {}
    while (result := running.manager.get_result(timeout=0)) is not None:
        found[result.request_id] = result.generated_tokens
    wanted = sequential(model, requests, 15)
    for index in (0, 2, 3):
        assert found[running.ids[index]] == wanted[index]


@pytest.mark.parametrize("window", [1, pytest.param(2, marks=pytest.mark.nightly), 16, 17])
def test_windows_of_a_token_and_of_a_block(window: int) -> None:
    """Against a model without a cache; transformers' own cache keeps everything where the window is 1."""
    model, requests = build("mistral"), requests_of(1, 16, 33)
    for module in (model.config, *model.modules()):
        if getattr(module, "sliding_window", None) is not None:
            module.sliding_window = window
    got = batched(model, requests, 6, page_size=16, num_blocks=40, max_batch_tokens=20)
    model.set_attn_implementation("eager")
    for tokens, prompt in zip(got, requests, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "family",
    ["gemma3", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("llama", "gpt_oss", "deepseek_v3"))],
)
def test_captured_steps_in_float16_are_those_that_are_not_captured(family: str) -> None:
    model, requests = build(family, dtype=torch.float16), requests_of(5, 30, 17)
    plain = batched(model, requests, 6, page_size=16, num_blocks=60, max_batch_tokens=64)
    assert captured(model, requests, 6).run() == plain
