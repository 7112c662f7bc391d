"""Models of a config at their true sizes, without weights.

They are fake tensors of the CPU: on the meta device dynamo can't trace all that models do (an index that
is a list, a constant).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import AscendFiaError


def build(config: Any, dtype: torch.dtype, mode: FakeTensorMode) -> nn.Module:
    """The model of ``config`` with parameters of ``dtype``, fake tensors of ``mode``, for inference.

    Raises AscendFiaError where transformers can't make a model of the config.
    """
    model_class = class_of(config)
    try:
        with mode, torch.no_grad(), _no_first_values():
            model: nn.Module = model_class._from_config(config, dtype=dtype)
    except Exception as error:
        rule = f"transformers can't build a {model_class.__name__} of it: {type(error).__name__}: {error}"
        raise AscendFiaError("config", config.model_type, rule) from error
    return model.eval()


def _no_first_values() -> AbstractContextManager[Any]:
    """Leaves out what gives weights their first values, some of which reads them."""
    home = "initialization" if find_spec("transformers.initialization") else "modeling_utils"
    skipped: AbstractContextManager[Any] = import_module(f"transformers.{home}").no_init_weights()
    return skipped


def unknown_architectures(config: Any, model: Any) -> tuple[str, ...]:
    """A note where the config names model classes that transformers doesn't have."""
    if not config.architectures or _named_class(config) is not None:
        return ()
    missing = ", ".join(config.architectures)
    return (f"transformers has no {missing}: planned as {type(model).__name__}, by the model type",)


def _named_class(config: Any) -> Any:
    """The first model class that the config names and transformers has, or None."""
    import transformers

    named = (getattr(transformers, name, None) for name in config.architectures or ())
    return next((found for found in named if found is not None), None)


def class_of(config: Any) -> Any:
    """The model class that the config names, or what transformers uses for the model type by itself."""
    from transformers.models.auto import modeling_auto as auto

    if (named := _named_class(config)) is not None:
        return named
    mappings = (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_MAPPING,
    )
    for mapping in mappings:
        if type(config) in mapping:
            return mapping[type(config)]
    rule = "transformers has no model class for it; name one in 'architectures'"
    raise AscendFiaError("config['model_type']", config.model_type, rule)
