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
    """A module list of layers: ``kinds[i]`` numbers the kind of layer i, in order of appearance."""

    path: str
    layers: tuple[Facts, ...]
    kinds: tuple[int, ...]

    @property
    def needed(self) -> int:
        """The least number of first layers in which every kind appears."""
        return max(self.kinds.index(kind) for kind in self.kinds) + 1

    def index(self, module_path: str) -> int | None:
        """The number of the layer that a module lies in, None outside of the stack."""
        head, found, rest = module_path.partition(f"{self.path}.")
        number = rest.partition(".")[0]
        return int(number) if found and not head and number.isdigit() else None


def stack_of(path: str, layers: Sequence[nn.Module], config: Mapping[str, Any]) -> Stack:
    """The stack of ``layers``, at ``path`` in a model of ``config`` (its to_dict())."""
    described = [dict(_facts(layer)) for layer in layers]
    numbers = [
        key
        for key, first in described[0].items()
        if type(first) is int and all(layer.get(key) == index for index, layer in enumerate(described))
    ]
    for index, layer in enumerate(described):
        for key in numbers:
            del layer[key]
        layer.update(_listed(config, len(layers), index))
    seen: list[Facts] = []
    kinds = []
    for layer in described:
        if layer not in seen:
            seen.append(layer)
        kinds.append(seen.index(layer))
    return Stack(path, tuple(described), tuple(kinds))


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


def _listed(
    config: Mapping[str, Any], length: int, index: int, path: tuple[str, ...] = ()
) -> Iterator[tuple[Any, Any]]:
    """What a config's lists of ``length`` entries say of the layer ``index``.

    A list of the layers' numbers says which layers, not of what kind each is, and is left out.
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _listed(value, length, index, (*path, name))
        elif isinstance(value, (list, tuple)) and len(value) == length and [*value] != [*range(length)]:
            yield ("config", *path, name), repr(value[index])
