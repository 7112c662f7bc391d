"""interleave: where the KV cache lives in decode.

Tokens are dealt to the ranks in turn, I at a time: position p belongs to rank (p // I) % R, which
keeps it at local index (p // (I * R)) * I + p % I. Appending one token moves nothing, and no rank
holds over I tokens more than another. vLLM's decode context parallel uses this layout; the
arithmetic is in int64, for float32 can't count above 2**24.

Layers with a sliding window of W keys keep the last W tokens. If I * R divides W, any W tokens in a row
are W / R on each rank, so each keeps a ring of that many rows and no row of it is ever outside the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError

from .checks import check_interleave, check_ranks


@dataclass(frozen=True)
class Interleave:
    """Where tokens are kept, and how many.

    Args:
        ranks: R.
        size: the run length I.
        window: W, the last tokens that are kept; None: all.

    Raises AscendFiaError where one is below 1, or I * R doesn't divide W.
    """

    ranks: int
    size: int = 1
    window: int | None = None

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        check_interleave(self.size)
        reason = self.ragged(self.window)
        if reason:
            raise AscendFiaError("window", self.window, reason)

    def ragged(self, window: int | None) -> str | None:
        """Why a window of this size isn't the same number of tokens on every rank, if it isn't."""
        turn = self.ranks * self.size
        if window is not None and (window < 1 or window % turn):
            return f"must be a multiple of {turn}, the tokens that {self.ranks} ranks are dealt in one turn"
        return None

    def owner(self, positions: Tensor) -> Tensor:
        """The rank that keeps each position; any shape, int64."""
        return positions.to(torch.int64) // self.size % self.ranks

    def local_index(self, positions: Tensor) -> Tensor:
        """Where its owner keeps each position; any shape, int64."""
        positions = positions.to(torch.int64)
        local = positions // (self.size * self.ranks) * self.size + positions % self.size
        return local if self.window is None else local % (self.window // self.ranks)

    def kept(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """Which positions are kept of sequences of ``lengths`` tokens; shapes broadcast, bool."""
        if self.window is None:
            return torch.ones_like(positions, dtype=torch.bool)
        return positions >= lengths - self.window

    def local_lengths(self, lengths: Tensor, rank: int) -> Tensor:
        """How many of the first ``lengths`` tokens ``rank`` keeps; 0 is possible."""
        check_ranks(self.ranks, rank)
        lengths = lengths.to(torch.int64)
        full = lengths // (self.size * self.ranks) * self.size
        rest = lengths % (self.size * self.ranks)
        local = full + (rest - rank * self.size).clamp(0, self.size)
        return local if self.window is None else local.clamp(max=self.window // self.ranks)

    def capacity(self, length: int) -> int:
        """Rows a rank must have for sequences of up to ``length`` tokens (rank 0 has the most)."""
        return int(self.local_lengths(torch.tensor(length), 0))

    def to_local(self, index: Tensor, rank: int) -> Tensor:
        """Rows of selected positions (.., K; -1 at the tail) as local indices of ``rank``.

        Positions of other ranks are dropped; the order of the kept ones stays and -1 fills the
        tail, as sparse attention wants it.
        """
        check_ranks(self.ranks, rank)
        mine = (index >= 0) & (self.owner(index) == rank)
        local = torch.where(mine, self.local_index(index), -1)
        order = torch.argsort((~mine).to(torch.int8), dim=-1, stable=True)
        return local.gather(-1, order)
