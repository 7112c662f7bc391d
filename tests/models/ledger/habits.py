"""Types that are decoded in a way of their own, or that a case can't be run with: data for `cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.models.minimax.modeling_minimax import MiniMaxCache

STATIC = ("static_decode", "chunked_prefill")
STEPS = (*STATIC, "dynamic_decode", "beam_reorder")

REASONS: dict[str, tuple[tuple[str, ...], str]] = {
    "blt": (STEPS, "its configuration doesn't say how many layers a cache has"),
    "blt_local_encoder": (("padded",), "its masks are made by the model that it is a part of"),
    "cpmant": (STATIC, "its mask and its position bias are as long as what it has seen"),
    "deepseek_v4": (STATIC, "StaticCache has no layer for heavily compressed attention"),
    "esmfold2": (("padded",), "the mask has to agree with other arguments"),
    "kosmos-2": (STEPS, "generate() calls a part of the model, the whole wants the images at each step"),
    "minimax": (STATIC, "it has a cache of its own"),
    "prophetnet": (STATIC, "its relative position bias is as long as what it has seen"),
    "voxtral_realtime": (STEPS, "each token comes with a piece of the sound"),
    "xlm": (STATIC, "its mask is as long as what it has seen"),
    "xlstm": (STEPS, "its states are in no cache of transformers"),
}
"""type -> the cases that its model can't be called for, and why."""

INAPPLICABLE = {model_type: cases for model_type, (cases, _) in REASONS.items()}

OWN_CACHES: dict[str, Callable[[], Any]] = {"minimax": MiniMaxCache}

IMAGES_AT_EACH_STEP = {"idefics": ("pixel_values", "image_attention_mask")}

TAKE_ALL_TOKENS = ("cpmant", "xlm")
"""Types that are given all tokens at each step, and leave out those in the cache by themselves."""
