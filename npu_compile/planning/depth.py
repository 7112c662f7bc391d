"""A model with only as many layers as it takes to have each kind of layer.

Attention is the same in all layers of a kind, so a plan of the first layers of each stack, in which
every kind appears, is a plan of the model: each site counts as often as its kind appears. The layers are
those of the whole model, which is built at its full depth; the others are taken out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .build import build
from .layer_kinds import Stack, stack_of

NAMES = frozenset(
    (
        *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth"),
        *("encoder_layers", "decoder_layers", "num_decoder_layers"),
    )
)
"""What configs call the number of layers of a stack."""


@dataclass(frozen=True)
class Depth:
    """The model to plan, of fake tensors of ``mode``.

    ``full``: the stacks of the whole model; ``planned``: how many layers of each it has.
    """

    model: nn.Module
    config: Any
    mode: FakeTensorMode
    full: tuple[Stack, ...]
    planned: tuple[int, ...]

    def whole_path(self, module_path: str) -> str:
        """``module_path`` as seen from the model, where it is the end of one module's path only.

        Where a graph broke inside of a module, dynamo names what follows as seen from that module.
        """
        names = [name for name, _ in self.model.named_modules()]
        whole = [name for name in names if name.endswith(f".{module_path}")]
        return whole[0] if module_path not in names and len(whole) == 1 else module_path

    def layers(self, module_path: str) -> tuple[Stack, tuple[int, ...]] | None:
        """The stack of a planned module and the layers it stands for: none where an earlier layer does.

        None for a module outside of the stacks, which stands for itself. Where all layers are planned, each
        stands for itself too.
        """
        for stack, planned in zip(self.full, self.planned, strict=True):
            index = stack.index(module_path)
            if index is not None and planned == len(stack.layers):
                return stack, (index,)
            if index is not None:
                same = [i for i, kind in enumerate(stack.kinds) if kind == stack.kinds[index]]
                return stack, tuple(same) if index == same[0] else ()
        return None


def shortened(config: Any, dtype: torch.dtype, reduce: bool = True) -> Depth:
    """The model of ``config`` without the layers behind those that have all kinds; whole unless ``reduce``.

    The config stays that of the whole model. Raises AscendFiaError where it can't be built.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = build(config, dtype, mode)
    full = _stacks(model, config.to_dict())
    planned = tuple(stack.needed if reduce else len(stack.layers) for stack in full)
    for stack, kept in zip(full, planned, strict=True):
        layers = model.get_submodule(stack.path)
        assert isinstance(layers, nn.ModuleList)
        del layers[kept:]
    return Depth(model, config, mode, full, planned)


def _stacks(model: nn.Module, config: Mapping[str, Any]) -> tuple[Stack, ...]:
    """The outermost module lists of ``model`` whose length the config (its to_dict()) states as a depth."""
    lengths = set(_depths(config))
    found: list[Stack] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{stack.path}.") for stack in found)
        if isinstance(module, nn.ModuleList) and len(module) in lengths and not inside:
            found.append(stack_of(path, list(module), config))
    return tuple(found)


def _depths(config: Mapping[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if name in NAMES and type(value) is int:
            yield value
        elif isinstance(value, Mapping):
            yield from _depths(value)
