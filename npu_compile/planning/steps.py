"""The calls of a model that are planned. Inputs are made in the model's fake mode, and have no values.

A causal language model has two: the prefill of a prompt into a new cache, and the decode step after it.
Everything else has one forward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..cache_argument import cache_argument
from .depth import Depth
from .sizes import Sizes, is_causal
from .trace import Call, Counters


@dataclass(frozen=True)
class Step:
    """``run(call)`` calls ``call``, the model or a method of it, or what stands for it.

    ``counters()`` are the inputs whose values are known, with the values.
    """

    name: str
    what: str
    call: Call
    run: Callable[[Call], Any]
    counters: Callable[[], Counters] = tuple


def steps(depth: Depth, sizes: Sizes) -> Iterator[Step]:
    """The steps in order; each must have run before the next one is asked for."""
    takes = set(inspect.signature(depth.model.forward).parameters)
    if sizes.prompt is not None and is_causal(depth.model):
        yield from _cached(depth, sizes.batch, sizes.prompt, sizes.cache)
        yield from _picture(depth, sizes.batch)
        return
    with depth.mode:
        inputs = dict(_inputs(depth, takes, sizes))
    yield Step("forward", _shapes(inputs), depth.model, lambda call: call(**inputs, **_no_cache(takes)))


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
    what = f"{batch} x {prompt} tokens into {kept}"
    yield Step("prefill", what, depth.model, call_with(prompt), counters(0))
    what = f"{batch} x 1 token, {prompt} before it in {kept}"
    yield Step("decode", what, depth.model, call_with(1), counters(prompt))


def _picture(depth: Depth, batch: int) -> Iterator[Step]:
    """What a model that reads pictures beside text does to one picture a request, given its pixels only."""
    features = getattr(depth.model, "get_image_features", None)
    vision = getattr(depth.config, "vision_config", None)
    if features is None or not hasattr(vision, "image_size") or not _needs_pixels_only(features):
        return
    with depth.mode:
        inputs = {"pixel_values": _pixels(vision, batch, depth)}
    yield Step("picture", _shapes(inputs), features, lambda call: call(**inputs))


def _needs_pixels_only(features: Call) -> bool:
    parameters = inspect.signature(features).parameters.values()
    bare = [
        given.name
        for given in parameters
        if given.default is given.empty and given.kind is given.POSITIONAL_OR_KEYWORD
    ]
    return bare == ["pixel_values"]


def _inputs(depth: Depth, takes: set[str], sizes: Sizes) -> Iterator[tuple[str, torch.Tensor]]:
    config = depth.config
    if "input_features" in takes:
        shape = (sizes.batch, config.num_mel_bins, 2 * config.max_source_positions)
        yield "input_features", torch.zeros(shape, dtype=_dtype(depth))
    if "pixel_values" in takes:
        yield "pixel_values", _pixels(getattr(config, "vision_config", config), sizes.batch, depth)
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


def _pixels(vision: Any, batch: int, depth: Depth) -> torch.Tensor:
    """Pictures of the size that the vision config states."""
    size = vision.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.zeros(batch, vision.num_channels, height, width, dtype=_dtype(depth))


def _dtype(depth: Depth) -> torch.dtype:
    return next(depth.model.parameters()).dtype


def _shapes(inputs: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in inputs.items())
