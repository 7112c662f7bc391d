"""How a captured graph gets at its inputs.

A graph finds its inputs at the addresses of the capture. Parameters, buffers, caches and whatever else the
graph writes to are used where they are, and checked to be there still; the rest, small and new at each step,
is copied into buffers of the graph's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .addresses import Addresses
from .split import Split


@dataclass(frozen=True)
class InputRoles:
    """Positions of the inputs by role: used ``fixed`` at their address, ``copied``, or ``plain`` values."""

    fixed: tuple[int, ...]
    copied: tuple[int, ...]
    plain: tuple[int, ...]

    @classmethod
    def of(cls, args: Sequence[Any], split: Split) -> InputRoles:
        """Inputs that the body writes to are fixed; so are parameters, what dynamo marked static, and views
        of those. What the body doesn't depend on has no role.
        """
        tensors = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and i in split.read]
        fixed = {i for i in tensors if i in split.mutated or _static(args[i])}
        storages = {_storage(args[i]) for i in fixed if args[i].numel()}
        fixed |= {i for i in tensors if args[i].numel() and _storage(args[i]) in storages}
        lifted = split.ints.lifted if split.ints else ()
        return cls(
            fixed=tuple(sorted(fixed)),
            copied=tuple(i for i in tensors if i not in fixed),
            plain=tuple(i for i, arg in enumerate(args) if not isinstance(arg, Tensor) and i not in lifted),
        )

    def key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What tells the captures of one graph apart: plain values, and shapes of the copied tensors."""
        return (*[args[i] for i in self.plain], *[(args[i].shape, args[i].dtype) for i in self.copied])

    def bind(self, args: Sequence[Any], int_tensors: int) -> BoundInputs:
        """What to capture with: fixed inputs and plain values as they are, buffers for the rest."""
        values = list(args)
        with torch.inference_mode(False):
            for i in self.copied:
                values[i] = torch.empty_like(args[i], requires_grad=False)
            device = next((args[i].device for i in (*self.fixed, *self.copied)), None)
            ints = [torch.empty((), dtype=torch.int64, device=device) for _ in range(int_tensors)]
        copies = [(i, values[i]) for i in self.copied]
        return BoundInputs([*values, *ints], Addresses(args, self.fixed), copies, ints)


@dataclass(frozen=True)
class BoundInputs:
    """The arguments of a capture: the graph's inputs and then the int tensors.

    ``addresses`` are those of the fixed inputs; ``copies`` the buffers by position of their input.
    """

    values: list[Any]
    addresses: Addresses
    copies: list[tuple[int, Tensor]]
    ints: list[Tensor]

    def write(self, args: Sequence[Any], ints: Sequence[int]) -> None:
        """Put a step's inputs and ints into the buffers."""
        for i, buffer in self.copies:
            buffer.copy_(args[i])
        for tensor, value in zip(self.ints, ints, strict=True):
            tensor.fill_(value)


def _static(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or hasattr(tensor, "_dynamo_static_input_type")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
