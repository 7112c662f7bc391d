"""zigzag: causal prefill work, dealt so that every rank has the same amount.

A sequence is cut into 2R blocks of nearly equal size. Rank r gets block r ("prev", cheap: few keys
before it) and block 2R-1-r ("next", dear), so the pairs cost the same. A batch lies on a rank as

    [prev block of each sequence | next block of each sequence]

The two halves are split at ``sum(prev sizes)``, which is the middle only if every sequence's two
blocks are equally long. The layout is that of SGLang's prefill context parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError

from .checks import check_lengths, check_ranks


def block_sizes(length: int, ranks: int) -> list[int]:
    """Sizes of the 2R blocks of one sequence; the first ``length % 2R`` are one token longer."""
    size, longer = divmod(length, 2 * ranks)
    return [size + (block < longer) for block in range(2 * ranks)]


def too_short(lengths: Sequence[int], ranks: int) -> str | None:
    """Why this batch can't be split (a block would be empty), or None where it can."""
    for index, length in enumerate(lengths):
        if length < 2 * ranks:
            return (
                f"sequence {index} has {length} tokens, fewer than the {2 * ranks} blocks of {ranks} ranks: "
                "every rank computes the whole batch"
            )
    return None


@dataclass(frozen=True)
class Zigzag:
    """The zigzag of one batch.

    Args:
        lengths: new tokens of each sequence, each at least 2 * ``ranks``.
        ranks: size of the group, R.

    Raises:
        AscendFiaError: no sequence, fewer tokens than blocks, or a value that is not a length.
    """

    lengths: tuple[int, ...]
    ranks: int

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        check_lengths("lengths", self.lengths)
        if not self.lengths:
            raise AscendFiaError("lengths", self.lengths, "a batch needs at least one sequence")
        reason = too_short(self.lengths, self.ranks)
        if reason:
            raise AscendFiaError("lengths", self.lengths, reason)

    @property
    def blocks(self) -> int:
        """Blocks per sequence, 2R."""
        return 2 * self.ranks

    @property
    def split_list(self) -> list[int]:
        """Sizes of all blocks of the packed batch, sequence after sequence."""
        return [size for length in self.lengths for size in block_sizes(length, self.ranks)]

    def zigzag_index(self, rank: int) -> list[int]:
        """Numbers (in ``split_list``) of the blocks on ``rank``, in local order."""
        check_ranks(self.ranks, rank)
        end = len(self.lengths) * self.blocks
        return [*range(rank, end, self.blocks), *range(self.blocks - 1 - rank, end, self.blocks)]

    def prev_sizes(self, rank: int) -> list[int]:
        """Tokens of each sequence's block ``rank``."""
        check_ranks(self.ranks, rank)
        return [block_sizes(length, self.ranks)[rank] for length in self.lengths]

    def next_sizes(self, rank: int) -> list[int]:
        """Tokens of each sequence's block 2R-1-``rank``."""
        check_ranks(self.ranks, rank)
        return [block_sizes(length, self.ranks)[self.blocks - 1 - rank] for length in self.lengths]

    def tokens(self, rank: int) -> int:
        """Tokens on ``rank``."""
        return sum(self.prev_sizes(rank)) + sum(self.next_sizes(rank))

    @property
    def tokens_per_rank(self) -> list[int]:
        return [self.tokens(rank) for rank in range(self.ranks)]

    @property
    def reverse_index(self) -> list[int]:
        """Where, in the rank-major list of all ranks' blocks, each block of ``split_list`` lies."""
        batch = len(self.lengths)
        order: list[int] = []
        for sequence in range(batch):
            order += range(sequence, self.blocks * batch, 2 * batch)
            order += range((self.blocks - 1) * batch + sequence, 0, -2 * batch)
        return order

    @property
    def reverse_split_len(self) -> list[int]:
        """Sizes of the blocks in rank-major order: what an all-gather without padding returns."""
        sizes = self.split_list
        return [sizes[block] for rank in range(self.ranks) for block in self.zigzag_index(rank)]

    def token_index(self, rank: int) -> Tensor:
        """(tokens(rank),) int64: where each local token lies in the packed batch."""
        starts = [0, *accumulate(self.split_list)]
        pieces = [torch.arange(starts[block], starts[block + 1]) for block in self.zigzag_index(rank)]
        return torch.cat(pieces)

    def restore_index(self, rows_per_rank: int | None = None, first_row: int = 0) -> Tensor:
        """(sum(lengths),) int64: the gathered row of each token of the packed batch.

        ``rows_per_rank`` is how many rows each rank gave to the all-gather (at least its tokens;
        None: the most any rank has), the tokens from ``first_row`` on.
        """
        most = first_row + max(self.tokens_per_rank)
        rows = most if rows_per_rank is None else rows_per_rank
        if rows < most:
            raise AscendFiaError("rows_per_rank", rows, f"a rank holds {most} rows")
        restore = torch.empty(sum(self.lengths), dtype=torch.int64)
        for rank in range(self.ranks):
            index = self.token_index(rank)
            restore[index] = rank * rows + first_row + torch.arange(index.numel())
        return restore
