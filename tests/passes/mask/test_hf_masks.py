"""Hugging Face's own masking functions, traced by dynamo as a model's forward traces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import masking_utils

from npu_compile.passes.mask.plan import Bound, FromMask
from tests.passes.mask.tracing import Result, compiled, run

WINDOW, CHUNK, BATCH, PROMPT = 5, 4, 2, 17


def config(attention: str) -> Any:
    made = hf.LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
    made._attn_implementation = attention
    return made


def local(attention: str) -> Any:
    """With a window and a chunk size."""
    made = config(attention)
    made.sliding_window, made.attention_chunk_size = WINDOW, CHUNK
    return made


def hidden(length: int) -> torch.Tensor:
    return torch.zeros(BATCH, length, 32)


def padding(length: int, left: bool) -> torch.Tensor:
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    mask[0, slice(0, 6) if left else slice(length - 6, length)] = 0
    return mask


def filled(cache: Any, tokens: int) -> Any:
    """A cache that has seen ``tokens`` tokens."""
    if tokens:
        cache.update(torch.zeros(BATCH, 4, tokens, 8), torch.zeros(BATCH, 4, tokens, 8), 0)
    return cache


def check(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = False) -> Result:
    traced = compiled(function, *inputs, dynamic=dynamic)
    mask = traced.masks[0].meta["val"]
    sizes = tuple(s.node.hint if isinstance(s, torch.SymInt) else s for s in mask.shape)
    found = run(traced, (BATCH, 4, *sizes[2:]))
    (mask,) = found.masks
    keep = mask if mask.dtype == torch.bool else mask == 0
    assert torch.equal(found.keep, keep.expand(found.keep.shape))
    rows = keep.any(-1, keepdim=True)
    assert torch.equal(found.implied[:, None] & rows, keep.expand(BATCH, -1, -1, -1))
    return found


@pytest.fixture(params=["sdpa", "eager"])
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("left", [True, False])
def test_padded_prefill(attention: str, left: bool) -> None:
    settings = config(attention)
    found = check(
        lambda x, m: masking_utils.create_causal_mask(settings, x, m, None),
        hidden(PROMPT),
        padding(PROMPT, left),
    )
    assert "causal, padding mask input" in found.meaning.words
    assert found.plan.sparse_mode == 1 and found.lengths == ([17, 17] if left else [11, 17])
    # The side isn't known when compiling. Left padding leaves nothing to the first rows.
    assert found.plan.empty_rows == ("zero" if attention == "sdpa" else "mean")


def test_eager_prefill_is_a_causal_mode() -> None:
    settings = config("eager")
    found = check(lambda x: masking_utils.create_causal_mask(settings, x, None, None), hidden(PROMPT))
    assert (found.plan.sparse_mode, found.plan.atten_mask, found.plan.lengths) == (3, "causal", None)
    assert not found.meaning.maybe_empty_rows


def test_sliding_window(attention: str) -> None:
    settings = local(attention)
    found = check(
        lambda x: masking_utils.create_sliding_window_causal_mask(settings, x, None, None), hidden(PROMPT)
    )
    plan = found.plan
    assert (plan.sparse_mode, plan.pre_tokens, plan.next_tokens) == (4, WINDOW - 1, 0)
    assert found.meaning.words == f"causal, window {WINDOW}" and plan.lengths is None


def test_window_wider_than_the_prompt_is_causal() -> None:
    settings = local("eager")
    found = check(
        lambda x: masking_utils.create_sliding_window_causal_mask(settings, x, None, None), hidden(4)
    )
    assert found.meaning.words == "causal" and found.plan.sparse_mode == 3


def test_chunked(attention: str) -> None:
    settings = local(attention)
    found = check(lambda x: masking_utils.create_chunked_causal_mask(settings, x, None, None), hidden(PROMPT))
    assert found.meaning.words == f"causal, same chunk of {CHUNK}"
    assert found.plan.atten_mask == "explicit" and isinstance(found.plan.lengths, FromMask)


def test_chunk_wider_than_the_prompt_is_causal() -> None:
    settings = local("eager")
    found = check(lambda x: masking_utils.create_chunked_causal_mask(settings, x, None, None), hidden(3))
    assert found.meaning.words == "causal" and found.plan.sparse_mode == 3


def test_bidirectional_padding(attention: str) -> None:
    settings = config(attention)
    found = check(
        lambda x, m: masking_utils.create_bidirectional_mask(settings, x, m),
        hidden(PROMPT),
        padding(PROMPT, False),
    )
    assert found.meaning.words.startswith("padding mask input")
    assert found.lengths == [11, 17]


def test_bidirectional_window(attention: str) -> None:
    settings = local(attention)
    found = check(
        lambda x: masking_utils.create_bidirectional_sliding_window_mask(settings, x, None), hidden(PROMPT)
    )
    assert found.meaning.words == f"keys within {WINDOW} of the query"
    assert (found.plan.sparse_mode, found.plan.pre_tokens, found.plan.next_tokens) == (4, WINDOW, WINDOW)


def test_static_cache_decode(attention: str) -> None:
    """One query token: causality is the length, read from the cache's own counter; there is no mask."""
    settings = config(attention)
    cache = filled(hf.StaticCache(settings, max_cache_len=40), 9)

    def step(x: torch.Tensor, k: torch.Tensor) -> Any:
        mask = masking_utils.create_causal_mask(settings, x, None, cache)
        return mask, *cache.update(k, k, 0)

    found = check(step, hidden(1), torch.zeros(BATCH, 4, 1, 8))
    assert (found.plan.sparse_mode, found.plan.atten_mask) == (0, None)
    assert found.lengths == [10] and found.plan.empty_rows is None
    assert isinstance(found.plan.lengths, Bound) and not found.plan.lengths.clamped


def test_static_cache_chunked_prefill(attention: str) -> None:
    settings = config(attention)
    cache = filled(hf.StaticCache(settings, max_cache_len=40), 9)

    def step(x: torch.Tensor, k: torch.Tensor) -> Any:
        mask = masking_utils.create_causal_mask(settings, x, None, cache)
        return mask, *cache.update(k, k, 0)

    found = check(step, hidden(7), torch.zeros(BATCH, 4, 7, 8))
    assert (found.plan.sparse_mode, found.plan.atten_mask) == (3, "causal")
    assert found.lengths == [16] and found.plan.empty_rows is None


def test_static_cache_without_the_write_is_not_proved() -> None:
    """Only the write of the new tokens proves that the counter is within the cache."""
    settings = config("sdpa")
    cache = filled(hf.StaticCache(settings, max_cache_len=40), 9)
    found = check(lambda x: masking_utils.create_causal_mask(settings, x, None, cache), hidden(7))
    assert found.plan.atten_mask == "explicit" and found.plan.empty_rows == "zero" and found.lengths == [16]


def test_static_cache_with_padding_mask(attention: str) -> None:
    settings = config(attention)
    cache = filled(hf.StaticCache(settings, max_cache_len=40), 9)
    mask = torch.cat([padding(9, True), torch.ones(BATCH, 1, dtype=torch.int64)], 1)
    found = check(lambda x, m: masking_utils.create_causal_mask(settings, x, m, cache), hidden(1), mask)
    assert found.plan.sparse_mode == 0 and found.plan.atten_mask == "explicit" and found.lengths == [10, 10]


def test_full_sliding_static_cache(attention: str) -> None:
    """The cache holds just the window: every key takes part."""
    settings = local(attention)
    settings.layer_types = ["sliding_attention"]
    cache = filled(hf.StaticCache(settings, max_cache_len=40), 9)

    def step(x: torch.Tensor, k: torch.Tensor) -> Any:
        mask = masking_utils.create_sliding_window_causal_mask(settings, x, None, cache)
        return mask, *cache.update(k, k, 0)

    found = check(step, hidden(1), torch.zeros(BATCH, 4, 1, 8))
    assert found.meaning.words == "all keys"
    assert (found.plan.sparse_mode, found.plan.atten_mask, found.plan.lengths) == (0, None, None)


def test_dynamic_cache_symbolic(attention: str) -> None:
    settings = config(attention)
    cache = filled(hf.DynamicCache(), 9)

    def step(x: torch.Tensor, k: torch.Tensor) -> Any:
        mask = masking_utils.create_causal_mask(settings, x, None, cache, allow_is_causal_skip=False)
        return mask, *cache.update(k, k, 0)

    found = check(step, hidden(7), torch.zeros(BATCH, 4, 7, 8), dynamic=None)
    assert (found.plan.sparse_mode, found.plan.atten_mask, found.plan.lengths) == (3, "causal", None)


def test_packed_sequences() -> None:
    """Position ids that start over mark packed sequences, which only the run can tell."""
    settings = config("sdpa")
    positions = torch.cat([torch.arange(5), torch.arange(8), torch.arange(4)]).expand(BATCH, -1)
    found = check(
        lambda x, p: masking_utils.create_causal_mask(settings, x, None, None, position_ids=p),
        hidden(PROMPT),
        positions,
    )
    assert "same block" in found.meaning.words and found.plan.atten_mask == "explicit"


def test_positions_in_order_are_no_packed_sequences() -> None:
    settings = config("sdpa")

    def forward(x: torch.Tensor) -> Any:
        positions = torch.arange(x.shape[1])[None]
        return masking_utils.create_causal_mask(settings, x, None, None, position_ids=positions)

    assert check(forward, hidden(PROMPT)).meaning.words == "causal"


def test_blocks_of_images() -> None:
    settings = config("sdpa")
    blocks = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1], [0, 0, -1, -1, -1, 1, 1, 1, 1]])
    found = check(
        lambda x, b: masking_utils.create_causal_mask(settings, x, None, None, block_sequence_ids=b),
        hidden(9),
        blocks,
    )
    assert " or " in found.meaning.words and found.plan.atten_mask == "explicit"
