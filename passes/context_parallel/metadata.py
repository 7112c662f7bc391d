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

    def step(self, device: torch.device | str = "cpu") -> PrefillStep:
        """The metadata as tensors; indices on ``device``, lengths on the host."""
        return PrefillStep(
            self.total_q_prev_tokens,
            self.rows_per_rank,
            self._half(self.actual_seq_q_prev, self.kv_len_prev, device),
            self._half(self.actual_seq_q_next, self.kv_len_next, device),
        )

    def _half(self, q_lens: list[int], kv_lens: list[int], device: torch.device | str) -> Half:
        starts = [0, *accumulate(self.kv_len)]
        rows = [self.kv_rows[first : first + kv_len] for first, kv_len in zip(starts, kv_lens, strict=False)]
        return Half(_cumulative(q_lens), _cumulative(kv_lens), torch.cat(rows).to(device))


@dataclass(frozen=True)
class Half:
    """One of the two FIA calls: cumulative lengths (B,) int64 of queries and keys, and where the keys are."""

    q_lengths: Tensor
    kv_lengths: Tensor
    kv_rows: Tensor


@dataclass(frozen=True)
class PrefillStep:
    """What a rewritten graph is given at each step, in this order."""

    total_q_prev_tokens: int
    rows_per_rank: int
    prev: Half
    next: Half


def _cumulative(lengths: list[int]) -> Tensor:
    return torch.tensor(list(accumulate(lengths)), dtype=torch.int64)
