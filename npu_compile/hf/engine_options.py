"""What the engines of a model are asked for, kept with the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import AscendFiaError
from ..kv_quant.scales import Int8KV
from ..serving.connector import KVConnector

ATTRIBUTE = "_ascend_fia_engine"


@dataclass(frozen=True)
class EngineOptions:
    """Choices that transformers' ContinuousBatchingConfig has no place for."""

    int8: Int8KV | None = None
    connector: KVConnector | None = None


def engine_options(model: Any) -> EngineOptions:
    return getattr(model, ATTRIBUTE, EngineOptions())


def use_kv_connector(model: Any, connector: KVConnector | None) -> None:
    """Have engines that are made for ``model`` from now on call ``connector``; None undoes it.

    Calls can't be part of a compiled step: decorate methods with ``torch.compiler.disable``, and don't ask
    for ``fullgraph``.
    """
    setattr(model, ATTRIBUTE, replace(engine_options(model), connector=connector))


def use_int8_cache(model: Any, int8: Int8KV | None) -> None:
    """Have engines that are made for ``model`` from now on cache keys and values as int8; None undoes it.

    The model's attention has to be "ascend_fia" when they are made. Raises AscendFiaError for scales that
    aren't this model's, and for MLA, whose latents are compressed already.
    """
    config = model.config.get_text_config()
    if int8 is not None:
        if getattr(config, "kv_lora_rank", None) is not None:
            raise AscendFiaError("int8", int8, f"{config.model_type} caches latents, which stay as they are")
        _require_fit(int8, config)
    setattr(model, ATTRIBUTE, replace(engine_options(model), int8=int8))


def _require_fit(int8: Int8KV, config: Any) -> None:
    if int8.scales is None:
        return
    layers = int8.scales.layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (config.num_key_value_heads, 1, head_dim)
    wrong = [i for i, s in enumerate(layers) if tuple(s.key.shape) != shape or tuple(s.value.shape) != shape]
    if len(layers) != config.num_hidden_layers:
        rule = f"the model has {config.num_hidden_layers} layers"
        raise AscendFiaError("int8.scales", f"{len(layers)} layers", rule)
    if wrong:
        shown = [tuple(layers[wrong[0]].key.shape), tuple(layers[wrong[0]].value.shape)]
        raise AscendFiaError(f"int8.scales.layers[{wrong[0]}]", shown, f"the model's are {shape}")
