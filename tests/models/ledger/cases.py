"""The ways to call a model: each gives the outputs to compare, or doesn't apply to a model."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.models.auto import modeling_auto

from tests.models.ledger.arguments import BATCH, LENGTH, tokens
from tests.models.ledger.build import Built
from tests.models.ledger.habits import IMAGES_AT_EACH_STEP, INAPPLICABLE, OWN_CACHES, TAKE_ALL_TOKENS
from tests.models.ledger.inputs import Inputs

Outputs = list[torch.Tensor]
Forward = Callable[..., Any]
Case = Callable[[Built, Forward], Outputs]
MakeCache = Callable[[Any, int], Any]
"""decoder configuration, length -> a cache."""

PADDED = 3
CACHE_LENGTH = 16


class NotApplicable(Exception):
    """A case that a model has no use for."""


def outputs_of(result: Any) -> Outputs:
    """The floating-point tensors of a forward's result, caches left out."""
    if isinstance(result, torch.Tensor):
        return [result.clone()] if result.is_floating_point() else []
    if isinstance(result, dict):
        kept = [value for name, value in result.items() if "cache" not in name and "past_key" not in name]
        return [tensor for value in kept for tensor in outputs_of(value)]
    if isinstance(result, list | tuple):
        return [tensor for value in result for tensor in outputs_of(value)]
    return []


def plainly(forward: Forward) -> Forward:
    """``forward`` without a compiler: transformers has flex_attention compiled by itself."""

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("force_eager"):
            return forward(*args, **kwargs)

    return run


def prefill(built: Built, forward: Forward) -> Outputs:
    return outputs_of(forward(**built.inputs))


def padded(built: Built, forward: Forward) -> Outputs:
    """Left-padded for decoders, right-padded for encoders: the first row has three padded positions."""
    ids = built.inputs.get("input_ids")
    if ids is None or ids.shape != (BATCH, LENGTH) or not _takes(built, "attention_mask"):
        raise NotApplicable
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, slice(PADDED) if is_decoder(built) else slice(-PADDED, None)] = 0
    found = outputs_of(forward(**{**built.inputs, "attention_mask": mask}))
    if built.model.config.is_encoder_decoder:
        return [values for values in found if values.shape[:2] != ids.shape or values is found[0]]
    return [_real(values, mask) for values in found]


def _real(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return values[mask.bool()] if values.shape[:2] == mask.shape else values


def static_decode(built: Built, forward: Forward) -> Outputs:
    return _decode(built, forward, _static_cache, 2)


def dynamic_decode(built: Built, forward: Forward) -> Outputs:
    return _decode(built, forward, _dynamic_cache, 2)


def _static_cache(config: Any, length: int) -> Any:
    return StaticCache(config=config, max_cache_len=length)


def _dynamic_cache(config: Any, length: int) -> Any:
    return OWN_CACHES[config.model_type]() if config.model_type in OWN_CACHES else DynamicCache(config=config)


def _decode(
    built: Built,
    forward: Forward,
    make_cache: MakeCache,
    steps: int,
    between: Callable[[Any], Any] | None = None,
) -> Outputs:
    """A prompt of 9 tokens by the plain model, then ``steps`` of one token; ``between`` is done to the cache
    in between."""
    cache, ids, inputs = _prepare(built, make_cache)
    text = _text(built, ids, LENGTH + steps)
    found = _step(plainly(built.model.forward), {**inputs, ids: text[:, :LENGTH]}, cache)
    if between is not None:
        between(cache)
    for position in range(LENGTH, LENGTH + steps):
        found += _step(forward, {**inputs, ids: _new(built, text, position, position + 1)}, cache)
    return found


def _step(forward: Forward, inputs: Inputs, cache: Any) -> Outputs:
    result = forward(**inputs, cache=cache, use_cache=True)
    return [result.logits.clone()] if "logits" in result else outputs_of(result)[:1]


def _new(built: Built, text: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return text[:, :end] if built.model_type in TAKE_ALL_TOKENS else text[:, start:end]


def _text(built: Built, ids: str, length: int) -> torch.Tensor:
    """Tokens to decode, with as many codes at each place and in as many rows as the model was built with."""
    rows, codes = built.inputs[ids].shape[0], built.inputs[ids].shape[2:]
    text = tokens(rows, length * math.prod(codes)).reshape(rows, length, *codes)
    return text % (int(built.inputs[ids].max()) + 1) if codes else text


def _prepare(built: Built, make_cache: MakeCache) -> tuple[Any, str, Inputs]:
    """The cache, the argument that the new tokens are, and the other arguments of each step."""
    config = built.model.config
    if not _takes(built, "cache") or not hasattr(built.model, "generate"):
        raise NotApplicable
    if config.is_encoder_decoder and "decoder_input_ids" in built.inputs:
        given = {name: value for name, value in built.inputs.items() if name != "decoder_input_ids"}
        decoder = config.get_text_config(decoder=True)
        encoder = built.model.get_encoder()
        if "inputs" in given:
            given = {encoder.main_input_name: given["inputs"]}
        encoded = plainly(encoder)(**given)
        crossed = make_cache(_without_windows(decoder), encoded[0].shape[1])
        cache = EncoderDecoderCache(make_cache(decoder, CACHE_LENGTH), crossed)
        return cache, "decoder_input_ids", {"encoder_outputs": encoded}
    if not is_decoder(built):
        raise NotApplicable
    images = {name: built.inputs[name] for name in IMAGES_AT_EACH_STEP.get(built.model_type, ())}
    return make_cache(config.get_text_config(decoder=True), CACHE_LENGTH), "input_ids", images


def _without_windows(config: Any) -> Any:
    """A decoder's configuration as far as its cross-attention goes, whose every layer sees all."""
    plain = copy.deepcopy(config)
    for name in ("sliding_window", "layer_types"):
        if getattr(plain, name, None) is not None:
            setattr(plain, name, None)
    return plain


def chunked_prefill(built: Built, forward: Forward) -> Outputs:
    """A prompt in chunks of 5 and 4 tokens into a static cache."""
    cache, ids, inputs = _prepare(built, _static_cache)
    found: Outputs = []
    text = _text(built, ids, LENGTH)
    for start, end in ((0, 5), (5, LENGTH)):
        found += _step(forward, {**inputs, ids: _new(built, text, start, end)}, cache)
    return found


def beam_reorder(built: Built, forward: Forward) -> Outputs:
    """A step after the rows of a dynamic cache have been reordered."""
    rows = torch.tensor([1, 1])
    return _decode(built, forward, _dynamic_cache, 1, lambda cache: cache.reorder_cache(rows))


def is_decoder(built: Built) -> bool:
    """A model that generates text on its own, by transformers' tables."""
    tables = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    )
    name = type(built.model).__name__
    known = any(name == value or name in value for table in tables for value in table.values())
    return known and not built.model.config.is_encoder_decoder and "input_ids" in built.inputs


def _takes(built: Built, name: str) -> bool:
    return name in inspect.signature(built.model.forward).parameters


def _checked(case: Case) -> Case:
    """Not for types that it is known not to be for."""

    @functools.wraps(case)
    def checked(built: Built, forward: Forward) -> Outputs:
        if case.__name__ in INAPPLICABLE.get(built.model_type, ()):
            raise NotApplicable
        return case(built, forward)

    return checked


CASES: dict[str, Case] = {
    case.__name__: _checked(case)
    for case in (prefill, padded, static_decode, dynamic_decode, chunked_prefill, beam_reorder)
}
