"""How many requests, prompt tokens and cache positions a plan is for."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import AscendFiaError
from ..option_kinds import Count

USUAL_PROMPT = 4096


@dataclass(frozen=True)
class Sizes:
    """``prompt`` is None for a model without tokens, ``cache`` for one without a static cache."""

    batch: int
    prompt: int | None
    cache: int | None


def sizes_for(model: Any, batch: Any, prompt: Any, cache: Any) -> tuple[Sizes, tuple[str, ...]]:
    """The sizes asked for, with defaults for None: a prompt of 4096 tokens, or half of the positions that
    the model has, and a cache of twice the prompt; and notes on sizes that have no meaning for the model.

    Raises AscendFiaError for sizes that aren't positive ints or that the model has no room for.
    """
    batch = _count("batch", batch)
    if not _takes_tokens(model):
        asked = [name for name, size in (("prompt", prompt), ("cache", cache)) if size is not None]
        notes = tuple(f"{name} has no meaning for this model: it takes no tokens" for name in asked)
        return Sizes(batch, None, None), notes
    most, causal = positions(model), is_causal(model)
    if prompt is None:
        room = USUAL_PROMPT if most is None else most // 2 if causal else most
        prompt = min(USUAL_PROMPT, room)
    prompt = _within("prompt", prompt, most)
    if not causal:
        notes = () if cache is None else ("cache has no meaning for this model: it isn't a causal decoder",)
        return Sizes(batch, prompt, None), notes
    if not _static(model):
        notes = () if cache is None else ("cache has no meaning for this model: it takes no static cache",)
        return Sizes(batch, prompt, None), notes
    cache = _within("cache", 2 * prompt if cache is None else cache, most)
    if cache <= prompt:
        raise AscendFiaError("cache", cache, f"must hold the prompt of {prompt} tokens and one more")
    return Sizes(batch, prompt, cache), ()


def positions(model: Any) -> int | None:
    """How many tokens the model's tables of positions have room for; None without one."""
    found = [int(model.config.max_seq_len)] if hasattr(model.config, "max_seq_len") else []
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        of_tokens = "vision" not in path and ("position" in name or name == "wpe")
        if isinstance(module, nn.Embedding) and of_tokens:
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            found.append(module.num_embeddings - int(getattr(module, "offset", reserved)))
    return min(found, default=None)


def is_causal(model: Any) -> bool:
    """Whether the model generates by itself, one token after the other."""
    generates = getattr(model, "can_generate", lambda: False)()
    return bool(generates) and not model.config.is_encoder_decoder and _takes_tokens(model)


def _static(model: Any) -> bool:
    """Whether transformers runs the model with a cache whose size doesn't change."""
    return bool(getattr(model, "_can_compile_fullgraph", False))


def _takes_tokens(model: Any) -> bool:
    takes = inspect.signature(model.forward).parameters
    return "input_ids" in takes or "decoder_input_ids" in takes


def _count(name: str, size: Any) -> int:
    try:
        return Count().accept(size)
    except ValueError as error:
        raise AscendFiaError(name, size, str(error)) from None


def _within(name: str, size: Any, most: int | None) -> int:
    size = _count(name, size)
    if most is not None and size > most:
        raise AscendFiaError(name, size, f"the model has a table of {most} positions")
    return int(size)
