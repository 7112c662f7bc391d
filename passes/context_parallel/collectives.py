"""Algorithms over ranks, written as one rank sees them.

An algorithm is a generator: it yields the collectives it wants started together and is sent their
results. What carries them out is chosen outside: functional collectives of torch.distributed
(:func:`run_on_group`, traceable into an FX graph), or all ranks in one process (the simulator).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

_c10d = torch.ops._c10d_functional


@dataclass(frozen=True)
class AllGather:
    """Every rank's tensor, rank-major along dim 0: (S, ...) becomes (R * S, ...)."""

    tensor: Tensor


@dataclass(frozen=True)
class AllToAll:
    """Dim 0 cut into R equal parts, part i sent to rank i; the received parts in order of sender."""

    tensor: Tensor


Collective = AllGather | AllToAll
Result = TypeVar("Result")
Algorithm = Generator[tuple[Collective, ...], tuple[Tensor, ...], Result]


@dataclass(frozen=True)
class Group:
    """A torch.distributed group by its registered name, as graphs refer to it; ``ranks`` is its size."""

    name: str
    ranks: int

    def start(self, collective: Collective) -> Tensor:
        """Launch ``collective``; its result may be read after ``wait_tensor``."""
        tensor = collective.tensor.contiguous()
        if isinstance(collective, AllGather):
            return _c10d.all_gather_into_tensor.default(tensor, self.ranks, self.name)
        part = [tensor.shape[0] // self.ranks] * self.ranks
        return _c10d.all_to_all_single.default(tensor, part, part, self.name)

    def run(self, collective: Collective) -> Tensor:
        """``collective`` from start to end."""
        return _c10d.wait_tensor.default(self.start(collective))


def run_on_group(algorithm: Algorithm[Result], group: Group) -> Result:
    """Run ``algorithm`` as this process's rank of ``group``.

    Collectives yielded together are all started before the first is waited for. Raises what
    torch.distributed raises: RuntimeError where a peer is gone or the group's timeout has passed.
    """
    try:
        wanted = next(algorithm)
        while True:
            started = [group.start(collective) for collective in wanted]
            wanted = algorithm.send(tuple(_c10d.wait_tensor.default(tensor) for tensor in started))
    except StopIteration as stop:
        result: Result = stop.value
        return result
