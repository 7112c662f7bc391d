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

    Unused blocks and the rest of a request's last one are never read.
    """

    cache: Tensor
    heads: int

    @property
    def block_size(self) -> int:
        return self.cache.shape[1 if self.cache.dim() == 3 else -2]

    def read(self, request: Request) -> Tensor:
        if not request.blocks:
            return self.cache.new_empty(1, self.heads, 0, self._head_dim)
        if self.cache.dim() == 5:
            blocks = self.cache[request.blocks].permute(1, 0, 3, 2, 4)
            return blocks.reshape(1, self.heads, -1, self._head_dim)[:, :, : request.key.stop]
        # One concatenation of views is the cheapest gather: it copies the valid tokens, once.
        axis, length = (0 if self.cache.dim() == 3 else 1), request.key.stop
        pieces = [self.cache[i] for i in request.blocks]
        pieces[-1] = pieces[-1].narrow(axis, 0, length - (len(pieces) - 1) * self.block_size)
        tokens = pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)
        if axis == 1:
            return tokens.unsqueeze(0)
        return tokens.view(1, length, self.heads, self._head_dim).transpose(1, 2)

    @property
    def _head_dim(self) -> int:
        shape = self.cache.shape
        if len(shape) == 5:
            return shape[2] * shape[4]
        return shape[-1] if len(shape) == 4 else shape[-1] // self.heads
