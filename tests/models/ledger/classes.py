"""The model classes of a type, the most telling first."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import transformers as hf
from transformers.models.auto import modeling_auto

MAPPINGS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
)
"""transformers' tables of classes by type, in the order of preference."""

WHOLE = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}
"""The classes of types whose classes in the tables take a part of the configuration."""


def model_classes(model_type: str, config_class: Any) -> list[Any]:
    """The classes that take a configuration of ``config_class``, without repetition."""
    found: list[Any] = []
    for candidate in (*_mapped(model_type), *_of_module(config_class)):
        if candidate not in found:
            found.append(candidate)
    return found


def _mapped(model_type: str) -> Iterator[Any]:
    if model_type in WHOLE:
        yield getattr(hf, WHOLE[model_type])
    for table in MAPPINGS:
        names = getattr(modeling_auto, table).get(model_type, ())
        for name in (names,) if isinstance(names, str) else names:
            if (found := getattr(hf, name, None)) is not None and hasattr(found, "_from_config"):
                yield found


def _of_module(config_class: Any) -> Iterator[Any]:
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("modeling_"):
            continue
        members = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
        for member in members.values():
            if (
                inspect.isclass(member)
                and issubclass(member, hf.PreTrainedModel)
                and member.config_class is config_class
                and "PreTrainedModel" not in member.__name__
                and member.forward is not hf.PreTrainedModel.forward
            ):
                yield member
