"""A batch of prompts as one rank computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError

from .layout.zigzag import Zigzag

Prompts = Sequence[Sequence[int] | Tensor] | Tensor
"""Token ids per sequence, or a (B, L) tensor of sequences of one length."""

TOKEN_TYPES = (torch.int64, torch.int32)


def token_lists(prompts: Prompts) -> list[Tensor]:
    """One 1-D int64 tensor a sequence. Raises AscendFiaError for what is no batch of sequences."""
    sequences: list[Tensor] = []
    for tokens in prompts:
        row = None if isinstance(tokens, str) else torch.as_tensor(tokens, device="cpu")
        if row is None or row.ndim != 1 or (row.numel() and row.dtype not in TOKEN_TYPES):
            raise AscendFiaError("prompts", prompts, "needs a list of token ids, unpadded, for each sequence")
        sequences.append(row.to(torch.int64))
    if not sequences or min(tokens.numel() for tokens in sequences) == 0:
        raise AscendFiaError("prompts", prompts, "needs at least one sequence, and a token in each")
    return sequences


@dataclass(frozen=True)
class Shard:
    """The tokens of one rank, packed into one row.

    Args:
        input_ids: (1, T) int64.
        position_ids: (1, T) int64, each token's place in its sequence.
        last: (B,) int64, where the last token of each sequence's next block is; on rank 0 that is
            the sequence's last token.
    """

    input_ids: Tensor
    position_ids: Tensor
    last: Tensor


def shard_of(sequences: Sequence[Tensor], prefix: Sequence[int], rank: int, ranks: int) -> Shard:
    """``rank``'s zigzag of ``sequences`` that continue ``prefix`` cached tokens each."""
    layout = Zigzag(tuple(tokens.numel() for tokens in sequences), ranks)
    index = layout.token_index(rank)
    positions = [
        torch.arange(before, before + tokens.numel())
        for before, tokens in zip(prefix, sequences, strict=True)
    ]
    last = sum(layout.prev_sizes(rank)) + torch.tensor(layout.next_sizes(rank)).cumsum(0) - 1
    return Shard(torch.cat(list(sequences))[index][None], torch.cat(positions)[index][None], last)


def padded_batch(sequences: Sequence[Tensor]) -> Shard:
    """All tokens, one sequence a row, padded at the end; ``last`` is (B,): each row's last real token.

    What stands behind a sequence doesn't reach it through causal attention.
    """
    lengths = torch.tensor([tokens.numel() for tokens in sequences])
    input_ids = torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    return Shard(input_ids, positions.contiguous(), lengths - 1)
