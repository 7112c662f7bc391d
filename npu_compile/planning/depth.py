"""A model with only as many layers as it takes to have each kind of layer once.

Attention is the same in all layers of a kind, so a plan of the first layers of each stack, in which
every kind appears, is a plan of the model: each site counts as often as its kind appears. That the
shorter model's layers are the longer one's is checked, layer by layer, on both; where they are not, the
model is planned at its full depth.
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

OUTPUTS = frozenset(("stage_names", "out_features", "out_indices"))
"""What a backbone's config derives from its depth."""


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
    """The model of ``config`` with the fewest layers that have all kinds; with ``reduce`` False, with all.

    Raises AscendFiaError where it can't be built.
    """
    content, mode = config.to_dict(), FakeTensorMode(allow_non_fake_inputs=True)
    outline = build(config, dtype, torch.device("meta"))
    full = _stacks(outline, content)
    if reduce and any(stack.needed < len(stack.layers) for stack in full):
        shorter = type(config).from_dict(_cut(content, full))
        model = build(shorter, dtype, mode)
        planned = _same_layers(outline, full, model, shorter.to_dict())
        if planned is not None:
            return Depth(model, shorter, mode, full, planned)
    return Depth(build(config, dtype, mode), config, mode, full, tuple(len(stack.layers) for stack in full))


def _same_layers(
    outline: nn.Module, full: tuple[Stack, ...], model: nn.Module, config: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """How many layers of each stack ``model`` has, None unless it is ``outline`` but for later layers."""
    if _outside(outline, full) != _outside(model, full):
        return None
    parts = [list(model.get_submodule(stack.path).children()) for stack in full]
    for stack, part in zip(full, parts, strict=True):
        if len(part) < stack.needed or not stack.begins_with(part, config):
            return None
    return tuple(map(len, parts))


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


def _cut(content: Mapping[str, Any], full: tuple[Stack, ...]) -> dict[str, Any]:
    """``content`` with every depth, and every list with an entry a layer, cut to what is needed."""
    needed: dict[int, int] = {}
    for stack in full:
        needed[len(stack.layers)] = max(stack.needed, needed.get(len(stack.layers), 0))
    own = {value for name, value in content.items() if name in NAMES and type(value) is int}
    cut = {name: value for name, value in content.items() if name not in OUTPUTS}
    for name, value in cut.items():
        if isinstance(value, Mapping):
            cut[name] = _cut(value, full)
        elif name in NAMES and value in needed:
            cut[name] = needed[value]
        elif isinstance(value, (list, tuple)) and len(value) in own & set(needed):
            cut[name] = list(value[: needed[len(value)]])
    return cut


def _outside(model: nn.Module, full: tuple[Stack, ...]) -> dict[str, Any]:
    """Classes and parameters of the modules outside of the stacks."""
    outside: dict[str, Any] = {}
    for path, module in model.named_modules():
        if all(stack.index(path) is None for stack in full):
            shapes = {name: value.shape for name, value in module._parameters.items() if value is not None}
            outside[path] = (type(module), shapes)
    return outside
