"""The host values of a step's lengths, at the price of at most one device read.

Where the lengths follow from counters that only the graph advances (the ``cumulative_length`` of a static
cache), the host keeps a mirror of the counters and advances it itself: no read at all. A mirror counts for
as long as its counter lies at the same address and has the same version; anything else that writes to the
counter changes the version, and the mirror is read anew.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .int_step import int_step
from .length_program import LengthProgram
from .split import Split
from .stats import CaptureStats
from .update_plan import Lengths

Identity = tuple["weakref.ref[Tensor]", int, int]
"""A counter, its address and its version."""


class LengthSource:
    """Evaluates the length program of a split graph, once per step."""

    def __init__(self, split: Split, stats: CaptureStats, mirror: bool = True) -> None:
        self._program = split.program
        self._device_type = _device_type(split)
        self._step = split.step if mirror and split.step and _only_counters(split, split.step) else None
        self._ints = int_step(self._step) if self._step else None
        self._stats = stats
        self._mirrors: dict[int, Any] = {}
        self._identities: dict[int, Identity | None] = {}
        self._next: Sequence[Any] = ()

    @property
    def mirrored(self) -> bool:
        """Whether steps need no device read while only the graph advances the counters."""
        return self._step is not None

    @property
    def cost(self) -> str:
        """What the lengths of a step cost, in words."""
        if self._program is None:
            return "no lengths to update"
        return "mirrored on the host: no device read" if self.mirrored else "one device read a step"

    def lengths(self, args: Sequence[Any]) -> list[Lengths]:
        """The length lists of the step that is about to run on ``args``."""
        if self._program is None:
            return []
        if self._step is None:
            return self._read(self._program.module(*[args[i] for i in self._program.reads]))
        stale = [i for i in self._step.reads if isinstance(args[i], Tensor) and not self._valid(i, args[i])]
        if stale:
            for i, values in zip(stale, self._read([args[i] for i in stale]), strict=True):
                self._mirrors[i] = self._mirror(values, args[i])
                self._identities[i] = _identity(args[i])
        known = [self._mirrors.get(i, args[i]) for i in self._step.reads]
        if self._ints is not None:
            lengths, self._next = self._ints.forward(*known)
            return lengths
        results = self._step.module.forward(*known)
        count = len(results) - len(self._step.states)
        self._next = results[count:]
        return [length.tolist() for length in results[:count]]

    def commit(self, args: Sequence[Any]) -> None:
        """The step has run: the mirrors now hold what the counters hold."""
        if self._step is not None:
            for i, value in zip(self._step.states, self._next, strict=True):
                self._mirrors[i] = value
                self._identities[i] = _identity(args[i])

    def forget(self) -> None:
        """Drop the mirrors; the next step reads the counters."""
        self._mirrors.clear()
        self._identities.clear()
        self._next = ()

    def _mirror(self, values: Lengths, counter: Tensor) -> Any:
        """A counter's values as the step takes them."""
        if self._ints is not None:
            return values[0]
        return torch.tensor(values, dtype=counter.dtype).view(counter.shape)

    def _valid(self, index: int, counter: Tensor) -> bool:
        known = self._identities.get(index)
        if known is None or known[0]() is not counter:
            return False
        return known[1:] == (counter.data_ptr(), counter._version)

    def _read(self, tensors: Sequence[Tensor]) -> list[Lengths]:
        """The values of some tensors, flattened, in one transfer."""
        self._stats.host_reads += any(tensor.device.type == self._device_type for tensor in tensors)
        if len(tensors) == 1:
            return [tensors[0].reshape(-1).tolist()]
        flat: Lengths = torch.cat([tensor.reshape(-1).long() for tensor in tensors]).tolist()
        bounds = [0]
        for tensor in tensors:
            bounds.append(bounds[-1] + tensor.numel())
        return [flat[start:end] for start, end in itertools.pairwise(bounds)]


def _only_counters(split: Split, step: LengthProgram) -> bool:
    """Whether every tensor the lengths depend on is one that the graph itself writes to."""
    inputs = [node for node in split.body.graph.nodes if node.op == "placeholder"]
    tensors = [i for i in step.reads if isinstance(inputs[i].meta.get("val"), Tensor)]
    return set(tensors) <= set(split.mutated)


def _device_type(split: Split) -> str:
    """The device of the captured graph; lengths on another one, the host, cost no read."""
    inputs = [node for node in split.body.graph.nodes if node.op == "placeholder"]
    values = [inputs[i].meta.get("val") for i in sorted(split.read)]
    return next((value.device.type for value in values if isinstance(value, Tensor)), "cpu")


def _identity(counter: Tensor) -> Identity | None:
    """None where the tensor has no version: an inference tensor, whose writes can't be noticed."""
    if counter.is_inference():
        return None
    return weakref.ref(counter), counter.data_ptr(), counter._version
