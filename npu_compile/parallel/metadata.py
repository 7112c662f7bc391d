"""Metadata of a step, from lengths: what rank r computes, reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError
from npu_compile.passes.context_parallel.metadata import PrefillMetadata

from .layout.checks import check_lengths
from .layout.interleave import Interleave
from .layout.zigzag import Zigzag, block_sizes


def prefill_metadata(
    lengths: Sequence[int], rank: int, cache: Interleave, prefix: Sequence[int] | None = None
) -> PrefillMetadata:
    """The zigzag of ``lengths`` new tokens after ``prefix`` cached ones, on ``rank``.

    A rank's K/V rows are the prefix tokens it holds in ``cache`` (sequence after sequence), then its
    new tokens. Raises AscendFiaError for lengths that can't be split.
    """
    prefix = list(prefix) if prefix is not None else [0] * len(lengths)
    check_lengths("prefix", prefix)
    if len(prefix) != len(lengths):
        raise AscendFiaError("prefix", prefix, f"needs one entry for each of the {len(lengths)} sequences")
    layout = Zigzag(tuple(lengths), cache.ranks)
    held = [cache.local_lengths(torch.tensor(prefix), r).tolist() for r in range(cache.ranks)]
    rows_per_rank = max(sum(held[r]) + layout.tokens(r) for r in range(cache.ranks))
    return PrefillMetadata(
        total_q_prev_tokens=sum(layout.prev_sizes(rank)),
        rows_per_rank=rows_per_rank,
        actual_seq_q_prev=layout.prev_sizes(rank),
        actual_seq_q_next=layout.next_sizes(rank),
        kv_len_prev=_kv_len(layout, prefix, rank),
        kv_len_next=_kv_len(layout, prefix, layout.blocks - 1 - rank),
        kv_len=[before + length for before, length in zip(prefix, lengths, strict=True)],
        kv_rows=_kv_rows(layout, cache, prefix, held, rows_per_rank),
        tokens_per_rank=tuple(layout.tokens_per_rank),
    )


def _kv_len(layout: Zigzag, prefix: Sequence[int], block: int) -> list[int]:
    """Keys of each sequence up to the end of ``block``."""
    new = [sum(block_sizes(length, layout.ranks)[: block + 1]) for length in layout.lengths]
    return [before + length for before, length in zip(prefix, new, strict=True)]


def _kv_rows(
    layout: Zigzag, cache: Interleave, prefix: Sequence[int], held: list[list[int]], rows_per_rank: int
) -> Tensor:
    """The gathered row of each key: of each sequence's prefix, then of its new tokens."""
    new_rows = torch.empty(sum(layout.lengths), dtype=torch.int64)
    for rank in range(layout.ranks):
        index = layout.token_index(rank)
        new_rows[index] = rank * rows_per_rank + sum(held[rank]) + torch.arange(index.numel())
    first_held = torch.tensor([[0, *accumulate(counts)][:-1] for counts in held])
    pieces: list[Tensor] = []
    for sequence, (before, new) in enumerate(zip(prefix, new_rows.split(layout.lengths), strict=True)):
        positions = torch.arange(before)
        owner = cache.owner(positions)
        pieces.append(owner * rows_per_rank + first_held[owner, sequence] + cache.local_index(positions))
        pieces.append(new)
    return torch.cat(pieces)


@dataclass(frozen=True)
class DecodeMetadata:
    """One decode step on one rank: tensors have one int64 entry per sequence.

    Args:
        positions: where the new token stands in its sequence.
        slots: the cache row it is written to; the spare row where another rank keeps it.
        local_lengths: keys this rank holds, the new token included if it is here; 0 is possible.
    """

    positions: Tensor
    slots: Tensor
    local_lengths: Tensor


def decode_metadata(lengths: Tensor, rank: int, cache: Interleave, rows: int) -> DecodeMetadata:
    """For sequences of ``lengths`` tokens that get one more; the last of a rank's ``rows`` is spare.

    Raises AscendFiaError where a sequence outgrows the cache.
    """
    after = cache.local_lengths(lengths + 1, rank)
    if int(cache.local_lengths(lengths + 1, 0).max()) >= rows:
        rule = f"one more token needs more than the {rows - 1} cache rows of a rank"
        raise AscendFiaError("lengths", lengths.tolist(), rule)
    slots = torch.where(cache.owner(lengths) == rank, cache.local_index(lengths), rows - 1)
    return DecodeMetadata(lengths.clone(), slots, after)
