"""What a model is called with: a few ways in order of preference, by the names of its arguments.

Two rows of nine tokens, images of the configured size, short sounds. Which way is right isn't looked up:
the first one that the plain model accepts is taken.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tests.models.ledger.arguments import BATCH, LENGTH, MAKERS, tokens
from tests.models.ledger.calls import CALLS

Inputs = dict[str, Any]
MOST_COMBINATIONS = 12

COMPANIONS = (
    *("input_features", "input_features_mask", "future_values", "future_time_features"),
    *("actions", "rewards", "returns_to_go", "timesteps", "visual_feats", "visual_pos"),
    *("pixel_values", "grid_thw", "image_grid_thw", "input_ids", "bbox", "spatial_shapes"),
    *("pixel_attention_mask", "image_embeds_position_mask"),
)
"""Arguments with a default that a full use of a model gives."""

IMAGE_COMPANIONS = (
    *("image_grid_thw", "image_sizes", "spatial_shapes", "pixel_attention_mask", "image_grid_hw"),
    "image_position_ids",
)
IMAGE_TOKENS = ("image_token_id", "image_token_index", "media_placeholder_token_id", "boi_token_id")


def candidates(model: Any) -> Iterator[Inputs]:
    """Arguments for ``model.forward``, the fullest use of the model first."""
    if (call := CALLS.get(model.config.model_type)) is not None:
        yield call(model.config)
    parameters = inspect.signature(model.forward).parameters
    names = _needed(model, parameters)
    if "pixel_values" in parameters and "pixel_values" not in names:
        yield from _with_images(model, parameters, names)
    companions = [name for name in COMPANIONS if name in parameters and name not in names]
    yield from _product(model.config, [*names, *companions])
    yield from _product(model.config, names)
    if "encoder_hidden_states" in parameters and "encoder_hidden_states" not in names:
        yield from _product(model.config, [*names, "encoder_hidden_states"])
    if "input_ids" in parameters and "input_ids" not in names:
        yield from _product(model.config, [*names, "input_ids"])
        yield from _product(model.config, ["input_ids"])


def _needed(model: Any, parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """The main inputs, those without a default, and the decoder's."""
    main = model.main_input_name
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [
        name for name, found in parameters.items() if found.default is found.empty and found.kind in kinds
    ]
    names = [*([main] if isinstance(main, str) else main), *required, "decoder_input_ids"]
    return [name for name in dict.fromkeys(names) if name in parameters]


def unknown(model: Any) -> list[str]:
    """The arguments that a model needs and that nothing is known to stand for."""
    names = _needed(model, inspect.signature(model.forward).parameters)
    return [name for name in names if name not in MAKERS]


def _product(config: Any, names: list[str]) -> Iterator[Inputs]:
    if any(name not in MAKERS for name in names):
        return
    alternatives = [MAKERS[name](config) for name in names]
    for values in itertools.islice(itertools.product(*alternatives), MOST_COMBINATIONS):
        yield dict(zip(names, values, strict=True))


def _with_images(model: Any, parameters: Mapping[str, Any], names: list[str]) -> Iterator[Inputs]:
    """Token ids that hold a special token for each feature that the model makes of its images."""
    ids = (getattr(model.config, name, None) for name in IMAGE_TOKENS)
    token = next((found for found in ids if isinstance(found, int)), None)
    holders = [holder for holder in (model, model.base_model) if hasattr(holder, "get_image_features")]
    features = holders[0].get_image_features if holders else None
    if token is None or features is None or "input_ids" not in parameters:
        return
    others = [name for name in names if name in MAKERS and name != "input_ids"]
    for extra in ([name for name in IMAGE_COMPANIONS if name in parameters], []):
        for images in _product(model.config, ["pixel_values", *extra]):
            count = _feature_count(features, images)
            if count is None or count % BATCH:
                continue
            text = tokens(length=LENGTH + count // BATCH)
            text[:, 2 : 2 + count // BATCH] = token
            rest = {name: MAKERS[name](model.config)[0] for name in others}
            if "mm_token_type_ids" in parameters:
                rest["mm_token_type_ids"] = (text == token).long()
            yield {"input_ids": text, **images, **rest}


def _feature_count(features: Callable[..., Any], images: Inputs) -> int | None:
    """How many rows a model makes of images; None where it doesn't take them."""
    try:
        with torch.no_grad():
            found = features(**images)
    except Exception:
        return None
    found = getattr(found, "pooler_output", found)
    rows = list(found) if isinstance(found, list | tuple) else [found]
    if not all(isinstance(row, torch.Tensor) for row in rows):
        return None
    return sum(row.numel() // row.shape[-1] for row in rows)
