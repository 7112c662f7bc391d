"""A static cache for ``generate()`` and compiled decoding whose tensors are int8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

from ..errors import AscendFiaError
from .int8 import dequantise, quantise
from .scales import KVScales, LayerScales


class Int8StaticLayer(StaticLayer):
    """A static layer that quantises what it is given and returns all of it dequantised.

    In a compiled graph that dequantisation becomes the operator's own, and the tensors that attention reads
    are the int8 ones.
    """

    def __init__(self, max_cache_len: int, scales: LayerScales) -> None:
        super().__init__(max_cache_len)
        self.scales = scales

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype = key_states.dtype
        # The scales get the dtype in which the operator takes them.
        self.key_scale = self.scales.key.to(key_states.device, self.dtype)
        self.value_scale = self.scales.value.to(value_states.device, self.dtype)
        super().lazy_initialization(key_states.to(torch.int8), value_states.to(torch.int8))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = super().update(
            quantise(key_states, self.key_scale), quantise(value_states, self.value_scale), *args, **kwargs
        )
        return (
            dequantise(keys, self.key_scale, self.dtype),
            dequantise(values, self.value_scale, self.dtype),
        )


class Int8StaticCache(Cache):
    """transformers' StaticCache for models with full attention only, in int8, with scales per channel.

    Raises AscendFiaError for scales of another number of layers, and for models with other layers.
    """

    def __init__(self, config: Any, max_cache_len: int, scales: KVScales) -> None:
        text = config.get_text_config(decoder=True)
        if len(scales.layers) != text.num_hidden_layers:
            rule = f"the model has {text.num_hidden_layers} layers"
            raise AscendFiaError("scales", f"{len(scales.layers)} layers", rule)
        kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(text, "sliding_window", None) is not None:
            raise AscendFiaError("layer_types", sorted(kinds), "an int8 static cache is for full attention")
        super().__init__(layers=[Int8StaticLayer(max_cache_len, layer) for layer in scales.layers])
