"""The memory of a paged K/V cache: its shape, and moving blocks within and between pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AscendFiaError
from ..kernels.targets import Target

Pairs = Sequence[tuple[int, int]]
"""(source block, destination block)."""


@dataclass(frozen=True)
class PagedKVPool:
    """``memory`` is (2, blocks, block_size, N_kv, D): keys, then values.

    Made by :meth:`allocate`. Both halves go to FIA as they are: ``keys.flatten(2)`` is a BnBsH cache.
    """

    memory: Tensor

    @classmethod
    def allocate(
        cls,
        blocks: int,
        block_size: int,
        num_key_value_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        target: Target = Target.CPU,
    ) -> PagedKVPool:
        """Zeros. Raises AscendFiaError for a block size that ``target`` can't use for prefill and decode."""
        multiple = 16 if target is Target.CPU else 128
        if block_size <= 0 or block_size % multiple:
            rule = f"on {target.value} it is a positive multiple of {multiple}"
            raise AscendFiaError("block_size", block_size, rule)
        shape = (2, blocks, block_size, num_key_value_heads, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device))

    @property
    def keys(self) -> Tensor:
        return self.memory[0]

    @property
    def values(self) -> Tensor:
        return self.memory[1]

    @property
    def blocks(self) -> int:
        return self.memory.shape[1]

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copy blocks within the pool; all sources are read before any destination is written.

        Raises AscendFiaError for an id outside the pool or a destination named twice.
        """
        self.swap_blocks(self, pairs)

    def swap_blocks(self, destination: PagedKVPool, pairs: Pairs) -> None:
        """Copy blocks to another pool, which may be on another device; bit for bit.

        Raises AscendFiaError as :meth:`copy_blocks` does, and for pools whose blocks differ.
        """
        if self.memory.shape[2:] != destination.memory.shape[2:]:
            shape = tuple(destination.memory.shape[2:])
            raise AscendFiaError("destination", shape, f"blocks are {tuple(self.memory.shape[2:])} here")
        if self.memory.dtype != destination.memory.dtype:
            raise AscendFiaError("destination", destination.memory.dtype, f"it is {self.memory.dtype} here")
        sources, destinations = [source for source, _ in pairs], [target for _, target in pairs]
        _require_ids("source", sources, self.blocks)
        _require_ids("destination", destinations, destination.blocks)
        if len(set(destinations)) != len(destinations):
            raise AscendFiaError("pairs", pairs, "no destination block is named twice")
        device = destination.memory.device
        moved = self.memory[:, torch.tensor(sources, dtype=torch.int64, device=self.memory.device)].to(device)
        destination.memory[:, torch.tensor(destinations, dtype=torch.int64, device=device)] = moved


def _require_ids(name: str, ids: list[int], blocks: int) -> None:
    wrong = [block for block in ids if not 0 <= block < blocks]
    if wrong:
        raise AscendFiaError(f"{name} block", wrong[0], f"the pool has blocks 0 to {blocks - 1}")
