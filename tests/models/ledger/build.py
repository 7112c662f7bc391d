"""Builds a type's tiny model and finds a call that it accepts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CONFIG_MAPPING

from tests.models.ledger.classes import model_classes
from tests.models.ledger.inputs import Inputs, candidates, unknown
from tests.models.ledger.shrink import SIZES, tiny_config

MOST_PARAMETERS = {"tiny": 60_000_000, "shallow": 20_000_000, "default": 10_000_000}
MOST_CLASSES = 3
MOST_CALLS = 30
MOST_SECONDS, MOST_SECONDS_A_CALL = 8.0, 1.0
"""The first flex_attention of a process takes longer: it imports what compiles it."""
UNSUPPORTED = "does not support an attention implementation"


class NotBuilt(Exception):
    """Why no model of a type runs: the first reason of the fullest attempt."""


@dataclass
class Built:
    """A model that runs, what it is called with, and how much its configuration was shrunk."""

    model_type: str
    model: Any
    inputs: Inputs
    size: str


def build(model_type: str, attention: str) -> Built:
    """The first class and size of ``model_type`` that can be built and called.

    Raises:
        NotBuilt: none can.
    """
    config_class = CONFIG_MAPPING[model_type]
    try:
        classes = model_classes(model_type, config_class)[:MOST_CLASSES]
    except Exception as error:
        raise NotBuilt(sentence(error)) from error
    if not classes:
        raise NotBuilt("no model class of its own takes its configuration")
    reasons: list[str] = []
    end = time.process_time() + MOST_SECONDS
    for size in SIZES:
        for model_class in classes:
            if reasons and time.process_time() > end:
                break
            try:
                model = make(
                    model_class, tiny_config(model_type, config_class, size), attention, MOST_PARAMETERS[size]
                )
                return Built(model_type, model, accepted(model), size)
            except Exception as error:
                if UNSUPPORTED in str(error) or repr(error) == repr(KeyError(attention)):
                    raise NotBuilt(UNSUPPORTED) from error
                reasons.append(f"{model_class.__name__}: {sentence(error)}")
    raise NotBuilt(reasons[0])


def make(model_class: Any, config: Any, attention: str, most_parameters: int) -> Any:
    """A model with random weights. Raises ValueError for a large one."""
    with torch.device("meta"):
        parameters = sum(
            p.numel() for p in model_class._from_config(config, attn_implementation=attention).parameters()
        )
    if parameters > most_parameters:
        raise ValueError(f"{parameters // 1_000_000} million parameters")
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation=attention).float().eval()
    stir(model)
    return model


def stir(model: Any) -> None:
    """Weights at which every part of the model matters to its result.

    Initial weights are so small that every softmax is nearly even, and gates start at zero: an error in a
    scale, a mask or behind a gate would hardly show.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            if parameter.ndim >= 2 and parameter[0].numel() > 1:
                fan_in = parameter[0].numel() if parameter.ndim != 3 else parameter.shape[-1]
                parameter.normal_(0, min(1.0, 1.2 / fan_in**0.5), generator=generator)
            elif float(parameter.abs().max()) < 1e-2:
                parameter.normal_(0, 0.3, generator=generator)


def accepted(model: Any) -> Inputs:
    """The first arguments that ``model`` runs with. Raises what the first ones raised."""
    first: Exception | None = None
    end = time.process_time() + MOST_SECONDS / 2
    for inputs in _bounded(candidates(model)):
        start = time.process_time()
        try:
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                model(**inputs)
        except Exception as error:
            first = first or error
        else:
            if time.process_time() - start > MOST_SECONDS_A_CALL:
                raise ValueError("a call takes too long")
            return inputs
        if time.process_time() > end:
            break
    raise first or ValueError(f"no inputs are known for it: {', '.join(unknown(model))}")


def _bounded(inputs: Iterator[Inputs], most: int = MOST_CALLS) -> Iterator[Inputs]:
    for _, found in zip(range(most), inputs, strict=False):
        yield found


def sentence(error: BaseException, length: int = 160) -> str:
    """An error in one line, without addresses."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:length]
