"""dual chunk swap: the zigzag of mixed batches, with equal chunks and replicated decode requests.

A prefill request of L tokens is cut into 2R chunks of ceil(L / 2R); the last ones may be short or
empty. Rank r holds chunks r and 2R-1-r of each request, request after request. A decode request
(one new token) is on every rank, before the prefill requests. This is vLLM's layout; unlike
:class:`~.zigzag.Zigzag` it has no shortest sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError

from .checks import check_lengths, check_ranks


@dataclass(frozen=True)
class DualChunkSwap:
    """The layout of one batch.

    Args:
        lengths: new tokens of each request, the decode requests first.
        ranks: size of the group, R.
        decodes: how many leading requests are replicated on every rank.
    """

    lengths: tuple[int, ...]
    ranks: int
    decodes: int = 0

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        check_lengths("lengths", self.lengths)
        if not 0 <= self.decodes <= len(self.lengths):
            raise AscendFiaError("decodes", self.decodes, f"there are {len(self.lengths)} requests")

    def token_index(self, rank: int) -> Tensor:
        """(tokens(rank),) int64: where each local token lies in the packed batch."""
        check_ranks(self.ranks, rank)
        pieces: list[Tensor] = []
        start = 0
        for request, length in enumerate(self.lengths):
            if request < self.decodes:
                pieces.append(torch.arange(start, start + length))
            else:
                chunk = -(-length // (2 * self.ranks))
                for number in (rank, 2 * self.ranks - 1 - rank):
                    first, last = min(number * chunk, length), min((number + 1) * chunk, length)
                    pieces.append(torch.arange(start + first, start + last))
            start += length
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)

    def tokens(self, rank: int) -> int:
        """Tokens on ``rank``, without padding."""
        return self.token_index(rank).numel()

    @property
    def padded_tokens(self) -> int:
        """Rows that every rank gives to the all-gather: the most tokens any rank has."""
        return max(self.tokens(rank) for rank in range(self.ranks))

    @property
    def restore_index(self) -> Tensor:
        """(sum(lengths),) int64: the gathered row (rank-major, padded) of each packed token.

        A replicated token is taken from rank 0.
        """
        restore = torch.empty(sum(self.lengths), dtype=torch.int64)
        for rank in reversed(range(self.ranks)):
            index = self.token_index(rank)
            restore[index] = rank * self.padded_tokens + torch.arange(index.numel())
        return restore

    @property
    def gather_index(self) -> Tensor:
        """(ranks * padded_tokens,) int64: the packed token of each gathered row; 0 on padding."""
        index = torch.zeros(self.ranks, self.padded_tokens, dtype=torch.int64)
        for rank in range(self.ranks):
            index[rank, : self.tokens(rank)] = self.token_index(rank)
        return index.flatten()

    @property
    def written(self) -> Tensor:
        """(ranks * padded_tokens,) bool: gathered rows whose K/V are to be written to the cache.

        False on padding and on the copies of replicated tokens (their slot is -1).
        """
        mask = torch.zeros(self.ranks * self.padded_tokens, dtype=torch.bool)
        mask[self.restore_index] = True
        return mask
