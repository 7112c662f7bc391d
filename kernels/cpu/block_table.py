"""Block tables of paged K/V caches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockTable:
    """``ids`` (B, columns), int32: row b names the blocks that hold the tokens of request b, in order.

    ``block_size`` is in tokens, ``blocks`` is how many blocks the cache has.
    """

    ids: Tensor
    block_size: int
    blocks: int

    @property
    def capacity(self) -> int:
        """How many tokens a request can have."""
        return self.ids.shape[1] * self.block_size

    def of(self, request: int, length: int) -> list[int]:
        """The blocks that hold the first ``length`` tokens. Raises ValueError if the cache lacks one."""
        used = self.ids.select(0, request).narrow(0, 0, -(-length // self.block_size)).tolist()
        if used and not 0 <= min(used) <= max(used) < self.blocks:
            last = self.blocks - 1
            raise ValueError(f"block_table: ids {used} of request {request} aren't all in 0..{last}")
        return used
