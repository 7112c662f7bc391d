"""Find the scales of an int8 K/V cache by running a model on samples of what it will read."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from transformers import DynamicCache

from ..cache_argument import cache_argument
from .int8 import channel_scale
from .scales import KVScales, LayerScales


class RangeRecorder(DynamicCache):
    """A cache that remembers the largest magnitude of every channel it has seen.

    ``ranges`` has (N_kv, 1, D) of keys and (N_kv, 1, Dv) of values for each layer.
    """

    def __init__(self, ranges: dict[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._ranges = ranges

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        new = [states.abs().float().amax((0, 2))[:, None] for states in (key_states, value_states)]
        seen = self._ranges.get(layer_idx)
        if seen is not None:
            new = [torch.maximum(a, b) for a, b in zip(new, seen, strict=True)]
        self._ranges[layer_idx] = (new[0], new[1])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def calibrate_kv(model: Any, batches: Iterable[Any], progress: bool = True) -> KVScales:
    """Scales per channel that fit the keys and values ``model`` makes of ``batches``.

    A batch is a tensor of token ids (B, S), or a dict of arguments of the model's forward. ``progress``
    shows a progress bar. Numbers larger than any of the samples' saturate later.
    Raises ValueError where ``batches`` is empty.
    """
    ranges: dict[int, tuple[Tensor, Tensor]] = {}
    name = cache_argument(model.forward)
    total = len(batches) if isinstance(batches, Sized) else None
    for batch in track(batches, "calibrating the K/V cache", total=total, disable=not progress):
        arguments = batch if isinstance(batch, dict) else {"input_ids": batch}
        with torch.no_grad():
            model(**arguments, **{name: RangeRecorder(ranges)}, use_cache=True)
    if not ranges:
        raise ValueError("batches: there is none, or the model caches nothing")
    layers = [tuple(channel_scale(r) for r in ranges[index]) for index in sorted(ranges)]
    return KVScales(tuple(LayerScales(key, value) for key, value in layers))
