"""Which operators of a run were of use: their results reach what is returned, or what was there before.

A model may compute what it then drops, such as the pooled output of a vision model, or the last keys of a
side that only the next layer would read. Dynamo keeps that in its graph; a compiler leaves it out. To
remove it from dynamo's graph one would have to know which calls there write in place: ATen operators say
so in their schemas, so this looks at those that ran.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten


@dataclass(frozen=True)
class Step:
    """An operator that ran: the memory it read and wrote, and what it is asked for by (``names``)."""

    read: frozenset[int]
    written: frozenset[int]
    names: frozenset[Hashable]


@dataclass
class Uses:
    """The operators of a run in order. Their memory is kept, so that nothing else gets its place."""

    steps: list[Step] = field(default_factory=list)
    _given: set[int] = field(default_factory=set)
    _kept: dict[int, Any] = field(default_factory=dict)

    def ran(self, operator: Any, args: Any, kwargs: Any, result: Any, names: Iterable[Hashable]) -> None:
        read, made = _memory((args, kwargs)), _memory(result)
        written = made.keys() | _memory(list(_written(operator, args, kwargs))).keys()
        self._given |= read.keys() - self._kept.keys()
        self._kept |= read | made
        self.steps.append(Step(frozenset(read), frozenset(written), frozenset(names)))

    def leading_to(self, returned: Any) -> set[Hashable]:
        """The names of all operators that ``returned``, or memory from before the run, depends on.

        An operator that makes no tensor makes a number, on which anything may depend.
        """
        needed = self._given | _memory(returned).keys()
        names: set[Hashable] = set()
        for step in reversed(self.steps):
            if not step.written or step.written & needed:
                needed |= step.read
                names |= step.names
        return names


def _memory(values: Any) -> dict[int, Any]:
    """The storages of tensors, which views share; a tensor without one, such as a sparse one, for itself."""
    tensors = [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]
    held = [value.untyped_storage() if value.layout == torch.strided else value for value in tensors]
    return {one._cdata: one for one in held}


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that ``operator`` writes to."""
    if not isinstance(operator, OpOverload):
        return
    for position, spec in enumerate(operator._schema.arguments):
        if spec.alias_info is not None and spec.alias_info.is_write:
            yield kwargs[spec.name] if spec.name in kwargs else args[position]
