"""Which Hugging Face models may run context parallel: attention must be all that mixes tokens."""

from __future__ import annotations

from typing import Any

from torch import nn

from .kinds import layer_kinds
from .layout.interleave import Interleave
from .windows import other_windows


def unsupported(model: nn.Module, max_length: int, layout: Interleave) -> str | None:
    """Why ``model`` would compute something else over ranks; None where attention is all to rewrite.

    A model with a sliding window is run once, on every rank, to see its masks.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "generate"):
        return "not a Hugging Face model that generates"
    text = text_config(model)
    reason = _attention(config, text) or _window(text, max_length, layout)
    reason = reason or _rope(text, max_length) or _mixers(model)
    kinds = layer_kinds(text, layout, max_length) if reason is None else None
    return other_windows(model, kinds) if kinds and kinds.windowed else reason


def _attention(config: Any, text: Any) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder-decoder; context parallel is for decoder-only models"
    if text._attn_implementation != "sdpa":
        return f"attention is {text._attn_implementation!r}; call model.set_attn_implementation('sdpa')"
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    return f"layers of type {', '.join(sorted(kinds))} are not attention over all keys" if kinds else None


def _window(text: Any, max_length: int, layout: Interleave) -> str | None:
    kinds = getattr(text, "layer_types", None)
    window = getattr(text, "sliding_window", None)
    windowed = window is not None if kinds is None else "sliding_attention" in kinds
    if not windowed or (isinstance(window, int) and window >= max_length):
        return None
    if not isinstance(window, int):
        return f"a sliding window of {window}"
    ragged = layout.ragged(window)
    return f"a sliding window of {window} {ragged}" if ragged else None


def _rope(text: Any, max_length: int) -> str | None:
    """Rope whose angles depend on the longest position seen: ranks see different ones."""
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    trained = getattr(text, "original_max_position_embeddings", None) or text.max_position_embeddings
    original = parameters.get("original_max_position_embeddings") or trained
    if kind in ("dynamic", "longrope") and max_length > original:
        return f"rope of type {kind!r} changes with the length beyond {original} positions"
    return None


def _mixers(model: nn.Module) -> str | None:
    if getattr(model, "_is_stateful", False):
        return "layers carry a state from token to token"
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.RNNBase)):
            return f"{name} ({type(module).__name__}) mixes tokens outside attention"
    return None


def text_config(model: Any) -> Any:
    """The config of the decoder, which a model of several parts has besides its own."""
    return model.config.get_text_config(decoder=True)
