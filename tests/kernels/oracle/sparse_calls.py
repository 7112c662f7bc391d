"""Random requests of the sparse operators, and their tensors in the operators' layouts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .draws import Draw
from .layouts import batched, packed, paged, table


@dataclass
class Requests:
    """Lengths and layouts of one call."""

    q_lens: list[int]
    kv_lens: list[int]
    layout_query: str
    layout_key: str
    capacity: tuple[int, int]
    block_table: Tensor | None
    blocks: int
    block_size: int

    @staticmethod
    def draw(draw: Draw, longest_kv: int = 54) -> Requests:
        batch = draw.size(1, 3)
        layout_query = draw.one_of("BSND", "TND")
        layout_key = draw.one_of(layout_query, "PA_BSND")
        q_lens = [draw.size(0, draw.one_of(1, 3, 7)) for _ in range(batch)]
        kv_lens = [draw.size(0, longest_kv) for _ in range(batch)]
        if layout_query == "TND":
            q_lens[0], kv_lens[0] = max(q_lens[0], 1), max(kv_lens[0], 1)
        block_size, block_table, blocks = draw.one_of(16, 32), None, 0
        if layout_key == "PA_BSND":
            block_table, blocks = table(kv_lens, block_size, 2, draw.generator)
        capacity = (max(*q_lens, 1) + draw.size(0, 2), max(*kv_lens, 1) + draw.size(0, 3))
        return Requests(q_lens, kv_lens, layout_query, layout_key, capacity, block_table, blocks, block_size)

    def queries(self, requests: list[Tensor]) -> Tensor:
        """(N, L, D) each."""
        if self.layout_query == "TND":
            return packed(requests, "TND")
        return batched(requests, "BSND", self.capacity[0], [0] * len(requests))

    def indices(self, requests: list[Tensor]) -> Tensor:
        """(1, L, count) each; rows that no request owns choose nothing."""
        result = self.queries(requests)
        return result.masked_fill(result == 77, -1)

    def keys(self, requests: list[Tensor]) -> Tensor:
        if self.block_table is not None:
            cache = paged(requests, "BnBsH", self.block_table, self.blocks, self.block_size)
            return cache.unflatten(-1, (requests[0].shape[0], -1))
        if self.layout_key == "TND":
            return packed(requests, "TND")
        return batched(requests, "BSND", self.capacity[1], [0] * len(requests))

    def options(self, keys: str) -> dict[str, object]:
        """Layouts, lengths and block table; ``keys`` is the operator's word: key or kv."""
        cumulative = torch.tensor(self.kv_lens).cumsum(0)
        packed_keys = self.layout_key == "TND"
        q_lens = torch.tensor(self.q_lens)
        return {
            "layout_query": self.layout_query,
            f"layout_{keys}": self.layout_key,
            "actual_seq_lengths_query": (q_lens.cumsum(0) if self.layout_query == "TND" else q_lens).to(
                torch.int32
            ),
            f"actual_seq_lengths_{keys}": (cumulative if packed_keys else torch.tensor(self.kv_lens)).to(
                torch.int32
            ),
            "block_table": self.block_table,
        }

    def rows(self, result: Tensor) -> list[Tensor]:
        """Each request's rows (Lq, ...) of a (B, S, ...) or (T, ...) result."""
        if self.layout_query == "TND":
            return list(torch.split(result, self.q_lens))
        return [result[b, :length] for b, length in enumerate(self.q_lens)]
