"""What tells the layers of a stack apart: two layers of one kind are the same but for their number.

A layer is described by its modules' classes, their parameters' shapes and dtypes, their plain attributes
(an epsilon, a window, a head count) and what the config says of the layer in its per-layer lists. An
attribute that is the layer's number in every layer of the stack (``layer_idx``) is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Facts = Mapping[Any, Any]
PLAIN = (bool, int, float, str, type(None), torch.dtype)


@dataclass(frozen=True)
class Stack:
    """A module list of layers: ``kinds[i]`` numbers the kind of layer i, in order of appearance.

    ``numbers`` are the attributes that hold the layer's number, ``lists`` the config's per-layer lists.
    """

    path: str
    layers: tuple[Facts, ...]
    kinds: tuple[int, ...]
    numbers: frozenset[Any]
    lists: tuple[tuple[str, ...], ...]

    @property
    def needed(self) -> int:
        """The least number of first layers in which every kind appears."""
        return max(self.kinds.index(kind) for kind in self.kinds) + 1

    def index(self, module_path: str) -> int | None:
        """The number of the layer that a module lies in, None outside of the stack."""
        head, found, rest = module_path.partition(f"{self.path}.")
        number = rest.partition(".")[0]
        return int(number) if found and not head and number.isdigit() else None

    def begins_with(self, layers: Sequence[nn.Module], config: Mapping[str, Any]) -> bool:
        """Whether the first layers of this stack are ``layers``, of a model of ``config``."""
        described = _described(layers, config, self.numbers, self.lists)
        return len(described) <= len(self.layers) and described == self.layers[: len(described)]


def stack_of(path: str, layers: Sequence[nn.Module], config: Mapping[str, Any]) -> Stack:
    """The stack of ``layers``, at ``path`` in a model of ``config`` (its to_dict())."""
    facts = [dict(_facts(layer)) for layer in layers]
    numbers = frozenset(
        key
        for key, first in facts[0].items()
        if type(first) is int and all(layer.get(key) == index for index, layer in enumerate(facts))
    )
    # A list of the layers' numbers says which layers, not of what kind each is.
    lists = tuple(
        keys for keys in _lists(config, len(layers)) if list(_at(config, keys)) != [*range(len(layers))]
    )
    described = _described(layers, config, numbers, lists)
    seen: list[Facts] = []
    kinds = []
    for layer in described:
        if layer not in seen:
            seen.append(layer)
        kinds.append(seen.index(layer))
    return Stack(path, described, tuple(kinds), numbers, lists)


def _described(
    layers: Sequence[nn.Module],
    config: Mapping[str, Any],
    numbers: frozenset[Any],
    lists: tuple[tuple[str, ...], ...],
) -> tuple[Facts, ...]:
    described = []
    for index, layer in enumerate(layers):
        own = {key: value for key, value in _facts(layer) if key not in numbers}
        own.update({("config", *keys): repr(_at(config, keys)[index]) for keys in lists})
        described.append(own)
    return tuple(described)


def _facts(layer: nn.Module) -> Iterator[tuple[Any, Any]]:
    for path, module in layer.named_modules():
        yield (path, "class"), f"{type(module).__module__}.{type(module).__qualname__}"
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield (path, name), None if tensor is None else (tuple(tensor.shape), tensor.dtype)
        for name, value in vars(module).items():
            if isinstance(value, PLAIN):
                yield (path, name), value
            elif isinstance(value, (list, tuple)) and all(isinstance(item, PLAIN) for item in value):
                yield (path, name), tuple(value)


def _lists(config: Mapping[str, Any], length: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a config has lists of ``length`` entries."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _lists(value, length, (*path, name))
        elif isinstance(value, (list, tuple)) and len(value) == length:
            yield (*path, name)


def _at(config: Mapping[str, Any], keys: Sequence[str]) -> Any:
    value: Any = config
    for key in keys:
        value = value[key]
    return value
