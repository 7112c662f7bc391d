"""The calls of a model that are planned. Inputs are made in the model's fake mode, and have no values.

A causal language model has two: the prefill of a prompt into a new cache, and the decode step after it.
Everything else has one forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..cache_argument import cache_argument
from .depth import Depth
from .sizes import Sizes, is_causal
from .trace import Call, Counters


@dataclass(frozen=True)
class Step:
    """``run(call)`` calls the model; ``counters()`` are inputs whose values are known, with the values."""

    name: str
    what: str
    run: Callable[[Call], Any]
    counters: Callable[[], Counters] = tuple


def steps(depth: Depth, sizes: Sizes) -> Iterator[Step]:
    """The steps in order; each must have run before the next one is asked for."""
    takes = set(inspect.signature(depth.model.forward).parameters)
    if sizes.prompt is not None and is_causal(depth.model):
        yield from _cached(depth, sizes.batch, sizes.prompt, sizes.cache)
        return
    with depth.mode:
        inputs = dict(_inputs(depth.config, takes, sizes, next(depth.model.parameters()).dtype))
    what = ", ".join(f"{name} {tuple(value.shape)}" for name, value in inputs.items())
    yield Step("forward", what, lambda call: call(**inputs, **_no_cache(takes)))


def _cached(depth: Depth, batch: int, prompt: int, most: int | None) -> Iterator[Step]:
    from transformers import DynamicCache, StaticCache

    config = depth.config
    with depth.mode:
        cache = (
            DynamicCache(config=config) if most is None else StaticCache(config=config, max_cache_len=most)
        )

    def call_with(tokens: int) -> Callable[[Call], Any]:
        with depth.mode:
            arguments = {"input_ids": _tokens(batch, tokens), cache_argument(depth.model.forward): cache}
        return lambda call: call(use_cache=True, **arguments)

    def counters(held: int) -> Callable[[], Counters]:
        return lambda: tuple((counter, torch.tensor(held)) for counter in _lengths(cache))

    kept = "a cache that grows" if most is None else f"a static cache of {most}"
    yield Step("prefill", f"{batch} x {prompt} tokens into {kept}", call_with(prompt), counters(0))
    what = f"{batch} x 1 token, {prompt} before it in {kept}"
    yield Step("decode", what, call_with(1), counters(prompt))


def _inputs(
    config: Any, takes: set[str], sizes: Sizes, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    if "input_features" in takes:
        shape = (sizes.batch, config.num_mel_bins, 2 * config.max_source_positions)
        yield "input_features", torch.zeros(shape, dtype=dtype)
    if "pixel_values" in takes:
        vision = getattr(config, "vision_config", config)
        height, width = _pair(vision.image_size)
        yield "pixel_values", torch.zeros(sizes.batch, vision.num_channels, height, width, dtype=dtype)
    if sizes.prompt is not None:
        for name in ("input_ids", "decoder_input_ids"):
            if name in takes:
                yield name, _tokens(sizes.batch, sizes.prompt)


def _lengths(cache: Any) -> Iterator[torch.Tensor]:
    """The tensors in which a static cache counts its tokens."""
    for layer in cache.layers:
        counter = getattr(layer, "cumulative_length", None)
        if isinstance(counter, torch.Tensor):
            yield counter


def _tokens(batch: int, tokens: int) -> torch.Tensor:
    return torch.zeros(batch, tokens, dtype=torch.int64)


def _no_cache(takes: set[str]) -> dict[str, bool]:
    return {"use_cache": False} if "use_cache" in takes else {}


def _pair(size: Any) -> tuple[int, int]:
    return tuple(size) if isinstance(size, (list, tuple)) else (size, size)
