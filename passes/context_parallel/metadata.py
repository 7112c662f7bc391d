"""What one prefill step needs to know, on one rank."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class PrefillMetadata:
    """One step's zigzag on one rank: lists have an entry per sequence, in batch order.

    Args:
        total_q_prev_tokens: local tokens before this row are prev blocks, the others next blocks.
        rows_per_rank: rows every rank gives to the all-gather of K/V (its own padded to the most).
        actual_seq_q_prev: tokens of each sequence's prev block; none is empty.
        actual_seq_q_next: tokens of each sequence's next block; none is empty.
        kv_len_prev: keys up to the end of each prev block, the prefix included.
        kv_len_next: keys up to the end of each next block.
        kv_len: all keys of each sequence.
        kv_rows: (total keys,) int64: gathered row of each key, sequence after sequence in order
            of position.
        tokens_per_rank: tokens that each rank computes.

    Raises:
        TypeError: a field is missing.
        ValueError: the fields don't fit together; the message names them and their values.
    """

    total_q_prev_tokens: int
    rows_per_rank: int
    actual_seq_q_prev: list[int]
    actual_seq_q_next: list[int]
    kv_len_prev: list[int]
    kv_len_next: list[int]
    kv_len: list[int]
    kv_rows: Tensor
    tokens_per_rank: tuple[int, ...]

    def __post_init__(self) -> None:
        lists = {
            f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), list)
        }
        if len({len(entries) for entries in lists.values()}) != 1 or not self.kv_len:
            raise ValueError(f"every list needs one entry per sequence, got {lists}")
        if self.total_q_prev_tokens != sum(self.actual_seq_q_prev):
            raise ValueError(
                f"total_q_prev_tokens={self.total_q_prev_tokens} is not the sum of "
                f"actual_seq_q_prev={self.actual_seq_q_prev}"
            )
        if self.kv_rows.shape != (sum(self.kv_len),):
            raise ValueError(f"kv_rows of shape {tuple(self.kv_rows.shape)} for kv_len={self.kv_len}")
        for q_lens, kv_lens in (
            (self.actual_seq_q_prev, self.kv_len_prev),
            (self.actual_seq_q_next, self.kv_len_next),
        ):
            for q_len, kv_len, whole in zip(q_lens, kv_lens, self.kv_len, strict=True):
                if not 0 < q_len <= kv_len <= whole:
                    raise ValueError(f"a block of {q_len} queries with {kv_len} of {whole} keys")

    @property
    def tokens(self) -> int:
        """Local tokens."""
        return sum(self.actual_seq_q_prev) + sum(self.actual_seq_q_next)

    def step(self, device: torch.device | str = "cpu", block_size: int = 0) -> PrefillStep:
        """The metadata as tensors; indices on ``device``, lengths on the host.

        With ``block_size`` the keys are read as pages of that many tokens, which both calls share:
        key lengths are per request then, and cumulative otherwise.
        """
        table, pages = None, None
        if block_size:
            table, pages = (part.to(device) for part in self._pages(block_size))

        def half(q_lens: list[int], kv_lens: list[int]) -> Half:
            kv_lengths = torch.tensor(kv_lens) if block_size else _cumulative(kv_lens)
            rows = self._rows(kv_lens).to(device) if pages is None else pages
            return Half(_cumulative(q_lens), kv_lengths, rows)

        return PrefillStep(
            self.total_q_prev_tokens,
            self.rows_per_rank,
            half(self.actual_seq_q_prev, self.kv_len_prev),
            half(self.actual_seq_q_next, self.kv_len_next),
            table,
            block_size,
        )

    def _rows(self, kv_lens: list[int]) -> Tensor:
        """Gathered rows of the first ``kv_lens`` keys of each sequence, one behind the other."""
        of_sequences = self.kv_rows.split(self.kv_len)
        return torch.cat([rows[:kv_len] for rows, kv_len in zip(of_sequences, kv_lens, strict=True)])

    def _pages(self, block_size: int) -> tuple[Tensor, Tensor]:
        """Block table (B, most blocks) int32, and the gathered row of each row of each block."""
        blocks = [-(-kv_len // block_size) for kv_len in self.kv_len]
        table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
        rows = torch.zeros(sum(blocks) * block_size, dtype=torch.int64)
        first = 0
        for row, of_sequence, count in zip(table, self.kv_rows.split(self.kv_len), blocks, strict=True):
            row[:count] = torch.arange(first, first + count)
            rows[first * block_size :][: of_sequence.numel()] = of_sequence
            first += count
        return table, rows


@dataclass(frozen=True)
class Half:
    """One of the two FIA calls.

    Args:
        q_lengths: (B,) int64, cumulative.
        kv_lengths: (B,) int64, cumulative; per request with pages.
        kv_rows: int64, gathered row of each key the call reads; of each row of the pages.
    """

    q_lengths: Tensor
    kv_lengths: Tensor
    kv_rows: Tensor


@dataclass(frozen=True)
class PrefillStep:
    """What the attention of one prefill step is given besides queries and keys.

    Args:
        block_table: (B, blocks) int32; None where keys are packed and not paged.
        block_size: tokens in a page; 0 without pages.
    """

    total_q_prev_tokens: int
    rows_per_rank: int
    prev: Half
    next: Half
    block_table: Tensor | None = None
    block_size: int = 0


def _cumulative(lengths: list[int]) -> Tensor:
    return torch.tensor(list(accumulate(lengths)), dtype=torch.int64)
