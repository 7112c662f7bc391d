"""What the sparse operators share: their layouts, in which lengths are tensors and paged keys are PA_BSND."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .block_table import BlockTable
from .paging import Paged
from .requests import Request, Sequences, one_by_one
from .tokens import Dense, Tokens
from .views import as_bnsd

LAYOUTS = {"BSND": 4, "TND": 3}
"""Query layouts, with their dims; keys may also be PA_BSND (blocks, block_size, N, D)."""


@dataclass(frozen=True, slots=True)
class SparseLayout:
    """``layout_query`` and ``layout_key`` or ``layout_kv`` of one call; ``key_name`` is what messages call
    the keys' layout and lengths, with the operator's suffix."""

    query: str
    key: str
    table: Tensor | None

    def __post_init__(self) -> None:
        if self.query not in LAYOUTS:
            raise ValueError(f"layout_query: {self.query!r} isn't one of {', '.join(LAYOUTS)}")
        paged = self.key == "PA_BSND"
        if not paged and self.key != self.query:
            raise ValueError(
                f"layout of the keys: {self.key!r} is neither PA_BSND nor the queries' {self.query}"
            )
        if paged != (self.table is not None):
            raise ValueError(f"block_table: it goes with PA_BSND keys, not with {self.key} and {self.table}")

    def tokens(self, stored: Tensor) -> Tokens:
        """Keys (..., N, D), or their scales (..., N), as tokens."""
        if stored.dim() == (3 if self.key == "PA_BSND" else LAYOUTS[self.key] - 1):
            stored = stored.unsqueeze(-1)
        if self.table is not None:
            return Paged(stored.flatten(2), stored.shape[2])
        return Dense(as_bnsd(stored, self.key, stored.shape[-2]))

    def requests(
        self, query: Tensor, key: Tensor, q_lengths: Sequences, kv_lengths: Sequences
    ) -> list[Request]:
        """One request each: ``query`` is its view (B, N, S, D), ``key`` the tensor as given."""
        queries = q_lengths.ranges(query.shape[0], query.shape[2])
        packed = self.query == "TND"
        if self.table is None:
            capacity = key.shape[0] if packed else key.shape[1]
            return one_by_one(queries, kv_lengths.ranges(len(queries), capacity), packed, None)
        if kv_lengths.lengths is None:
            raise ValueError(f"{kv_lengths.name}: paged keys need it, got None")
        if self.table.shape[0] != len(queries):
            raise ValueError(f"block_table: {self.table.shape[0]} rows for {len(queries)} requests")
        table = BlockTable(self.table, key.shape[1], key.shape[0])
        return one_by_one(queries, kv_lengths.ranges(len(queries), table.capacity), packed, table)

    def sequences(
        self, q_lengths: Tensor | None, kv_lengths: Tensor | None, suffix: str
    ) -> tuple[Sequences, Sequences]:
        """The length arguments; ``suffix`` is what the operator calls its keys: key or kv."""
        packed = self.query == "TND"
        return (
            Sequences("actual_seq_lengths_query", q_lengths, packed),
            Sequences(f"actual_seq_lengths_{suffix}", kv_lengths, packed and self.table is None),
        )
