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

    @property
    def _head_dim(self) -> int:
        shape = self.cache.shape
        if len(shape) == 5:
            return shape[2] * shape[4]
        return shape[-1] if len(shape) == 4 else shape[-1] // self.heads

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
        if self.cache.dim() == 5:
            blocks = self.cache[ids].permute(1, 0, 3, 2, 4)
            return blocks.reshape(1, self.heads, count * self.block_size, self._head_dim)[:, :, :length]
        # One concatenation of views is the cheapest gather: it copies the valid tokens, once.
        pieces = [self._block(i) for i in ids]
        if not pieces:
            return self.cache.new_empty(1, self.heads, 0, self._head_dim)
        pieces[-1] = pieces[-1].narrow(1, 0, length - (count - 1) * self.block_size)
        return (pieces[0] if count == 1 else torch.cat(pieces, 1)).unsqueeze(0)

    def _block(self, index: int) -> Tensor:
        """(N_kv, block_size, D), a view."""
        block = self.cache[index]
        if block.dim() == 3:
            return block
        return block.unflatten(-1, (self.heads, self._head_dim)).transpose(0, 1)
