"""Whether a model's own masks have the windows that its config speaks of.

Under context parallel masks are made from the config, so a model whose code reads it in another way
would compute something else. Three tokens with a window of two tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .kinds import LayerKinds

CAUSAL = [[True, False, False], [True, True, False], [True, True, True]]
WINDOWED = [[True, False, False], [True, True, False], [False, True, True]]
"""The masks of three tokens: row i are the keys that token i sees."""


def other_windows(model: nn.Module, kinds: LayerKinds) -> str | None:
    """Which layer's mask is not as ``kinds`` has it, by running ``model`` once; None where all are."""
    masks = _masks_of_three_tokens(model)
    for layer, kind in enumerate(kinds.of_layer):
        if layer not in masks:
            return f"layer {layer} has no attention module whose window could be checked"
        windowed = kinds.layouts[kind].window is not None
        if not _is(masks[layer], WINDOWED if windowed else CAUSAL):
            which = "a sliding window" if windowed else "no window"
            return f"layer {layer} has {which} by its config and another mask by its code"
    return None


@torch.no_grad()
def _masks_of_three_tokens(model: Any) -> dict[int, Tensor | None]:
    masks: dict[int, Tensor | None] = {}

    def note(module: Any, _: Any, given: dict[str, Any]) -> None:
        if "attention_mask" in given:
            masks[module.layer_idx] = given["attention_mask"]

    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in layers]
    config = model.config.get_text_config(decoder=True)
    window = config.sliding_window
    config.sliding_window = 2
    try:
        device = next(model.parameters()).device
        model(input_ids=torch.zeros(1, 3, dtype=torch.int64, device=device), use_cache=False)
    finally:
        config.sliding_window = window
        for hook in hooks:
            hook.remove()
    return masks


def _is(mask: Tensor | None, expected: list[list[bool]]) -> bool:
    """A missing mask is causal: SDPA is told so by its flag."""
    if mask is None:
        return expected is CAUSAL
    attended = mask if mask.dtype == torch.bool else mask == 0
    return attended.shape == (1, 1, 3, 3) and attended[0, 0].tolist() == expected
