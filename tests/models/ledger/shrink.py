"""A tiny configuration from a configuration's defaults, by the rules of `rules` and `overrides`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.models.ledger import rules
from tests.models.ledger.overrides import DEFAULTS, FILLED, OVERRIDES, ROTARY_SECTIONS

SIZES = ("tiny", "shallow", "default")
"""How much is shrunk: all sizes; depths and vocabularies only; nothing."""

Fields = dict[str, Any]


def tiny_config(model_type: str, config_class: Any, size: str) -> Any:
    """A configuration of ``config_class`` whose model is tiny. Raises what the class raises."""
    fields = config_class(**DEFAULTS.get(model_type, {})).to_dict()
    for name in rules.DERIVED:
        fields.pop(name, None)
    if size != "default":
        fields = Shrinker(shallow=size == "shallow").shrink(fields)
    if size == "tiny":
        _set_sections(model_type, fields)
        _merge(fields, OVERRIDES.get(model_type, {}))
    return config_class(**{name: value for name, value in fields.items() if name != "model_type"})


def _set_sections(model_type: str, fields: Fields) -> None:
    """Rotary sections of texts with images, whose defaults are in the code of the models."""
    sections = next((found for pattern, found in ROTARY_SECTIONS if re.fullmatch(pattern, model_type)), None)
    if sections and isinstance(fields.get("rope_parameters"), dict) and "vocab_size" in fields:
        fields["rope_parameters"] = {**fields["rope_parameters"], "mrope_section": list(sections)}
    for value in fields.values():
        if sections and isinstance(value, dict):
            _set_sections(model_type, value)


def _merge(fields: Fields, changes: Fields) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            _merge(fields[name], value)
        else:
            fields[name] = value


@dataclass
class Shrinker:
    """Shrinks one configuration and those inside of it."""

    shallow: bool
    specials: Iterator[int] = field(default_factory=lambda: iter(range(rules.VOCABULARY - 1, 0, -1)))

    def shrink(self, fields: Fields) -> Fields:
        kept = layers_to_keep(fields)
        found = rules.DERIVED + (rules.STAGES if "num_hidden_layers" in fields else ())
        return {
            name: self._value(str(name), value, fields, kept)
            for name, value in fields.items()
            if name not in found
        }

    def _value(self, name: str, value: Any, fields: Fields, kept: list[int]) -> Any:
        if name == "per_layer_config" and isinstance(value, dict) and kept:
            by_layer = {int(index): settings for index, settings in value.items()}
            return {new: self.shrink(by_layer[old]) for new, old in enumerate(kept) if old in by_layer}
        if isinstance(value, dict):
            return self.shrink(value)
        if value is None and not self.shallow:
            return FILLED.get(name)
        if kept and name in rules.LAYER_COUNTS:
            return len(kept)
        if kept and isinstance(value, list) and len(value) == _number_of_layers(fields):
            return [value[index] for index in kept]
        layers = len(kept) or rules.LAYERS
        if isinstance(value, list | tuple) and value:
            return self._list(name, list(value), layers)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._number(name, value, fields, layers)
        return value

    def _number(self, name: str, value: int, fields: Fields, layers: int) -> int:
        if re.fullmatch(rules.TOKEN_IDS, name) and value >= rules.FIRST_SPECIAL_TOKEN:
            common = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
            return common[name] if name in common else next(self.specials)
        if re.fullmatch(rules.STACKS, name):
            return min(value, rules.LAYERS)
        if not self.shallow:
            heads = next((fields[key] for key in rules.HEAD_COUNTS if key in fields), 0)
            if re.fullmatch(r".*(key_value_heads|kv_heads|n_head_kv)", name):
                return 4 if value >= heads else min(value, 2)
            if name == "embed_dim" and isinstance(fields.get("num_heads"), list):
                return 8 * fields["num_heads"][0]
            if name == "window_size" and value > 16:
                return 32
            if name == "head_dim" and value == fields.get("qk_rope_head_dim"):
                return 8
        for pattern, limit in rules.AT_MOST if not self.shallow else rules.AT_MOST_ALWAYS:
            if re.fullmatch(pattern, name):
                return min(value, limit)
        if re.fullmatch(rules.LAYER_INDICES, name):
            return max(-layers, min(value, layers - 1))
        return value

    def _list(self, name: str, values: list[Any], layers: int) -> list[Any]:
        if re.fullmatch(r"(short_factor|long_factor)", name):
            return values[:8]
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            return values
        if re.fullmatch(rules.DEPTHS_BY_STAGE, name):
            return [min(value, 2) for value in values]
        if re.fullmatch(rules.LAYER_INDICES, name):
            return sorted({max(-layers, min(value, layers - 1)) for value in values})
        if self.shallow:
            return values
        if name == "mrope_section":
            return rules.MROPE.get(len(values), values)
        if re.fullmatch(rules.WIDTHS_BY_STAGE, name):
            return [max(8, value // 4) for value in values]
        if re.fullmatch(r".*(image_size|img_size|input_size)", name):
            return [min(value, 32) for value in values]
        if name == "patch_size":
            return [min(value, 8) for value in values]
        return values


def _number_of_layers(fields: Fields) -> int | None:
    return next((fields[name] for name in rules.LAYER_COUNTS if name in fields), None)


def layers_to_keep(fields: Fields) -> list[int]:
    """The first layer of each kind, where the fields say the kinds of all layers."""
    layers = _number_of_layers(fields)
    if not isinstance(layers, int) or layers < 2:
        return []
    kinds = [
        value
        for value in fields.values()
        if isinstance(value, list) and len(value) == layers and isinstance(value[0], str | bool | int | list)
    ]
    by_layer = fields.get("per_layer_config")
    if isinstance(by_layer, dict) and by_layer:
        known = {int(index): settings for index, settings in by_layer.items()}
        kinds.append([known.get(index) for index in range(layers)])
    if not kinds:
        return []
    first: dict[str, int] = {}
    for index, kind in enumerate(zip(*kinds, strict=True)):
        first.setdefault(repr(kind), index)
    return sorted(first.values())[:4]
