"""Paged K/V caches: a request's tokens are the blocks that its row of the block table names, in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .requests import Request


@dataclass(frozen=True, slots=True)
class Paged:
    """``cache`` in one of the operators' forms, for ``heads`` K/V heads:

    * BnBsH (blocks, block_size, N_kv * D)
    * BnNBsD (blocks, N_kv, block_size, D)
    * NZ (blocks, N_kv, D / x, block_size, x), x = 16 for two-byte dtypes, 32 for int8

    ``table`` is (B, columns), int32. Unused blocks and the rest of the last one are never read.
    """

    cache: Tensor
    table: Tensor
    heads: int

    @property
    def block_size(self) -> int:
        return self.cache.shape[1 if self.cache.dim() == 3 else -2]

    def read(self, request: Request) -> Tensor:
        length = request.key.stop
        count = -(-length // self.block_size)
        if count > self.table.shape[1]:
            columns = self.table.shape[1]
            raise ValueError(
                f"block_table: {columns} columns of {self.block_size} tokens, {length} are needed"
            )
        ids = self.table[request.first, :count].tolist()
        if ids and not 0 <= min(ids) <= max(ids) < self.cache.shape[0]:
            last = self.cache.shape[0] - 1
            raise ValueError(f"block_table: ids {ids} of request {request.first} aren't all in 0..{last}")
        if self.cache.dim() == 3:
            return self._rows(ids, length)
        if self.cache.dim() == 4:
            return self._blocks(ids, length)
        dim = self.cache.shape[2] * self.cache.shape[4]
        blocks = self.cache[ids].permute(1, 0, 3, 2, 4)
        return blocks.reshape(1, self.heads, count * self.block_size, dim)[:, :, :length]

    def _rows(self, ids: list[int], length: int) -> Tensor:
        """BnBsH: one copy, none if the blocks happen to follow one another."""
        first = ids[0] if ids else 0
        consecutive = ids == list(range(first, first + len(ids)))
        blocks = self.cache[first : first + len(ids)] if consecutive else self.cache[ids]
        rows = blocks.flatten(0, 1)[:length]
        return rows.unflatten(-1, (self.heads, rows.shape[-1] // self.heads)).transpose(0, 1).unsqueeze(0)

    def _blocks(self, ids: list[int], length: int) -> Tensor:
        """BnNBsD: the blocks' heads joined token-wise, in one copy of the valid tokens."""
        if not ids:
            return self.cache.new_empty(1, self.heads, 0, self.cache.shape[-1])
        pieces = [self.cache[i] for i in ids]
        pieces[-1] = pieces[-1][:, : length - (len(ids) - 1) * self.block_size]
        return torch.cat(pieces, 1).unsqueeze(0)
