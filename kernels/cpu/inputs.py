"""FIA's tensors and lengths, as both operator versions pass them, turned into views, tokens and requests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..layouts import Layout, value_head_dim
from .block_table import BlockTable
from .paging import Paged
from .quant import INT4_PER_INT32, Factors, Int4
from .requests import Request, Sequences, one_by_one, together
from .tokens import Dense, Tokens, join
from .views import as_bnsd


@dataclass(frozen=True, slots=True)
class Inputs:
    """What says how to read the tensors of one call. ``table`` is the block table of paged keys."""

    layout: Layout
    heads: int
    kv_heads: int
    table: Tensor | None
    block_size: int

    def query(self, query: Tensor, rope: Tensor | None, scale: Tensor | None = None) -> Tensor:
        """(B, N, S, D) view of the query; a copy if it has a rope part, which is appended to D, or a scale.

        The scale is per token and head, in the query's layout without D. It holds for the rope part too:
        whoever quantises a query of MLA divides its rope part by the same scale.
        """
        view = as_bnsd(query, self.layout.query, self.heads)
        if view.shape[1] != self.heads:
            raise ValueError(f"query: {view.shape[1]} heads in {tuple(query.shape)}, not {self.heads}")
        if rope is not None:
            view = join(view, as_bnsd(rope, self.layout.query, self.heads))
        return view if scale is None else view.to(torch.float32) * self._per_head(scale, view)

    def _per_head(self, scale: Tensor, view: Tensor) -> Tensor:
        """A scale per token and head as a (B, N, S, 1) view."""
        batch, heads, tokens, _ = view.shape
        unfolded = "BSND" if self.layout.query == "BSH" else self.layout.query
        sizes = {"B": batch, "N": heads, "S": tokens, "T": tokens, "D": 1}
        return as_bnsd(scale.reshape([sizes[letter] for letter in unfolded]), unfolded, heads)

    def tokens(self, stored: Tensor) -> Tokens:
        """Keys, values or their rope part."""
        tokens: Tokens
        if self.table is not None:
            paged = Paged(stored, self.kv_heads)
            if paged.block_size != self.block_size:
                raise ValueError(f"block_size: {self.block_size}, but the cache has {tuple(stored.shape)}")
            tokens = paged
        else:
            view = as_bnsd(stored, self.layout.query, self.kv_heads)
            if view.shape[1] != self.kv_heads:
                raise ValueError(
                    f"key/value: {view.shape[1]} heads in {tuple(stored.shape)}, not {self.kv_heads}"
                )
            tokens = Dense(view)
        return Int4(tokens) if stored.dtype == torch.int32 else tokens

    def real(self, tokens: Tokens, factors: Factors | None, stored: Tensor) -> Tokens:
        """``tokens`` of the tensor ``stored`` as real numbers. Integers without factors are refused."""
        if factors is not None:
            return factors.of(tokens, self.kv_heads, self.table is not None)
        if not stored.is_floating_point():
            raise ValueError(f"key/value: {stored.dtype} needs a scale to be dequantised with, got None")
        return tokens

    def value_dim(self, value: Tensor) -> int:
        """Dv."""
        dim: int = value_head_dim(tuple(value.shape), self.layout, self.kv_heads, self.table is not None)
        return dim * INT4_PER_INT32 if value.dtype == torch.int32 else dim

    def requests(self, query: Tensor, key: Tensor, q: Sequences, kv: Sequences) -> list[Request]:
        """The requests of a call with the query view ``query`` and the given ``key``."""
        queries = q.ranges(query.shape[0], query.shape[2])
        if self.table is None:
            view = as_bnsd(key, self.layout.query, self.kv_heads)
            keys = kv.ranges(len(queries), view.shape[2])
            return one_by_one(queries, keys, True, None) if self.layout.packed else together(queries, keys)
        if kv.lengths is None:
            raise ValueError(f"{kv.name}: paged keys need it, got None")
        if self.table.shape[0] != len(queries):
            raise ValueError(f"block_table: {self.table.shape[0]} rows for {len(queries)} requests")
        table = BlockTable(self.table, self.block_size, key.shape[0])
        return one_by_one(queries, kv.ranges(len(queries), table.capacity), self.layout.packed, table)
