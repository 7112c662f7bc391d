"""Which layers keep which tokens, and the masks that say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .layout.interleave import Interleave

Masks = Tensor | dict[str, Tensor] | None
"""What a Hugging Face model takes as ``attention_mask``: one 4-D mask, or one for each type of layer."""


@dataclass(frozen=True)
class LayerKinds:
    """The layers of a model by what they keep.

    Args:
        layouts: of each kind; layers without a window come first where there are both.
        of_layer: each layer's kind.
    """

    layouts: tuple[Interleave, ...]
    of_layer: tuple[int, ...]

    @property
    def windowed(self) -> bool:
        return any(layout.window is not None for layout in self.layouts)

    def masks(self, build: Callable[[int], Tensor]) -> Masks:
        """The masks that ``build`` makes for each kind, as models take them."""
        if len(self.layouts) == 1:
            return build(0)
        return {"full_attention": build(0), "sliding_attention": build(1)}

    def prefill_masks(self, tokens: int, device: torch.device) -> Masks:
        """Causal (1, 1, S, S) masks with the windows; None where causal is all there is."""
        if not self.windowed:
            return None
        places = torch.arange(tokens, device=device)

        def causal(kind: int) -> Tensor:
            window = self.layouts[kind].window
            seen = places <= places[:, None]
            return (seen if window is None else seen & (places > places[:, None] - window))[None, None]

        return self.masks(causal)


def layer_kinds(config: Any, layout: Interleave, max_length: int) -> LayerKinds:
    """The kinds of the layers of a text ``config``; a window that hides nothing is none."""
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    types = types or ["sliding_attention"] * config.num_hidden_layers
    hides = window is not None and window < max_length
    windows = [window if kind == "sliding_attention" and hides else None for kind in types]
    distinct = sorted(set(windows), key=lambda one: one is not None)
    layouts = tuple(Interleave(layout.ranks, layout.size, one) for one in distinct)
    return LayerKinds(layouts, tuple(distinct.index(one) for one in windows))
