"""What the lightning indexers and sparse flash attention have in common: layouts, lengths, paging.

Their lengths are tensors: cumulative for TND, per request for BSND and PA_BSND.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from ..layouts import Size
from .call import Call
from .facts import TensorFacts, proven
from .rule import DEVICES, rule

RANKS = {"BSND": 4, "TND": 3, "PA_BSND": 4}
UNLIMITED = 2**63 - 1


class SparseCall(Call):
    """``side`` is what the operator calls its keys in argument names: ``key`` or ``kv``."""

    def __init__(self, arguments: Mapping[str, Any], side: str) -> None:
        super().__init__(arguments)
        self.side = side

    def argument_name(self, name: str) -> str:
        return {"layout_key": f"layout_{self.side}", "key_lengths": self.key_lengths}.get(name, name)

    @cached_property
    def key_lengths(self) -> str:
        return f"actual_seq_lengths_{self.side}"

    @cached_property
    def layout_query(self) -> str:
        layout: str = self.args["layout_query"]
        return layout

    @cached_property
    def layout_key(self) -> str:
        layout: str = self.args[f"layout_{self.side}"]
        return layout

    @cached_property
    def paged(self) -> bool:
        return self.layout_key == "PA_BSND"

    @cached_property
    def batch(self) -> Size | None:
        query = self.tensor("query")
        if self.layout_query == "BSND":
            return query.shape[0]
        lengths = self.optional("actual_seq_lengths_query")
        return None if lengths is None else lengths.shape[0]

    @cached_property
    def heads(self) -> Size:
        return self.tensor("query").shape[-2]

    @cached_property
    def kv_heads(self) -> Size:
        return self.tensor("key").shape[-2]

    @cached_property
    def per_token(self) -> tuple[Size, ...]:
        """(B, S) or (T,) of the query."""
        return self.tensor("query").shape[:-2]


@rule("sparse.layout_query", "layout_query", "it is BSND or TND")
def layout_query(call: SparseCall) -> Any:
    return call.layout_query if call.layout_query not in ("BSND", "TND") else None


@rule("sparse.layout_key", "layout_key", "it is query's layout, or PA_BSND")
def layout_key(call: SparseCall) -> Any:
    return call.layout_key if call.layout_key not in (call.layout_query, "PA_BSND") else None


@rule("sparse.query.rank", "query", "it is (B, S, N, D) or (T, N, D), as layout_query says")
def query_rank(call: SparseCall) -> Any:
    query = call.tensor("query")
    return query if len(query.shape) != RANKS.get(call.layout_query, len(query.shape)) else None


@rule("sparse.key.rank", "key", "it has the dims its layout says; PA_BSND is (blocks, block_size, N, D)")
def key_rank(call: SparseCall) -> Any:
    key = call.tensor("key")
    return key if len(key.shape) != RANKS.get(call.layout_key, len(key.shape)) else None


@rule("sparse.empty", "query", "query and key have elements")
def empty(call: SparseCall) -> Any:
    return next((t for n in ("query", "key") if proven((t := call.tensor(n)).numel == 0)), None)


def _form(call: SparseCall, name: str) -> Any:
    lengths = call.optional(name)
    return (
        lengths if lengths is not None and (lengths.dtype != torch.int32 or len(lengths.shape) != 1) else None
    )


@rule("sparse.lengths.form.query", "actual_seq_lengths_query", "it is 1-D int32")
def lengths_form_query(call: SparseCall) -> Any:
    return _form(call, "actual_seq_lengths_query")


@rule("sparse.lengths.form.key", "key_lengths", "it is 1-D int32")
def lengths_form_key(call: SparseCall) -> Any:
    return _form(call, call.key_lengths)


@rule("sparse.lengths.required.query", "actual_seq_lengths_query", "TND needs cumulative lengths")
def lengths_required_query(call: SparseCall) -> Any:
    missing = call.layout_query == "TND" and call["actual_seq_lengths_query"] is None
    return "None" if missing else None


@rule("sparse.lengths.required.key", "key_lengths", "TND and PA_BSND need lengths")
def lengths_required_key(call: SparseCall) -> Any:
    return "None" if call.layout_key in ("TND", "PA_BSND") and call[call.key_lengths] is None else None


@rule("sparse.block_table.form", "block_table", "it is int32 (B, blocks per request), and comes with PA_BSND")
def block_table(call: SparseCall) -> Any:
    table = call.optional("block_table")
    if (table is None) == call.paged:
        return f"{table} with {call.layout_key}"
    wrong = table is not None and (len(table.shape) != 2 or table.dtype != torch.int32)
    return table if wrong else None


def _count(call: SparseCall, lengths: TensorFacts | None) -> Any:
    if lengths is None or call.batch is None or not proven(lengths.shape[0] != call.batch):
        return None
    return f"{lengths} for {call.batch} requests"


@rule("sparse.lengths.count.query", "actual_seq_lengths_query", "there is one length per request")
def lengths_count_query(call: SparseCall) -> Any:
    return _count(call, call.optional("actual_seq_lengths_query"))


@rule("sparse.lengths.count.key", "key_lengths", "there is one length per request")
def lengths_count_key(call: SparseCall) -> Any:
    return _count(call, call.optional(call.key_lengths))


@rule("sparse.block_table.rows", "block_table", "it has one row per request")
def block_table_rows(call: SparseCall) -> Any:
    return _count(call, call.optional("block_table"))


@rule("sparse.key.batch", "key", "it has query's B")
def key_batch(call: SparseCall) -> Any:
    key = call.tensor("key")
    wrong = call.layout_key == "BSND" and proven(key.shape[0] != call.tensor("query").shape[0])
    return f"{key} with query {call.tensor('query')}" if wrong else None


@rule("sparse.key.heads", "key", "it has one head")
def key_heads(call: SparseCall) -> Any:
    return call.tensor("key") if proven(call.kv_heads != 1) else None


@rule("sparse.block_size", "key", "a block has a multiple of 16 tokens")
def block_size(call: SparseCall) -> Any:
    return call.tensor("key") if call.paged and proven(call.tensor("key").shape[1] % 16 != 0) else None


@rule("sparse.block_size.limit", "key", "a block has at most 1024 tokens", targets=DEVICES)
def block_size_limit(call: SparseCall) -> Any:
    return call.tensor("key") if call.paged and proven(call.tensor("key").shape[1] > 1024) else None


@rule("sparse.sparse_mode", "sparse_mode", "it is 0 or 3")
def sparse_mode(call: SparseCall) -> Any:
    return call["sparse_mode"] if call["sparse_mode"] not in (0, 3) else None


@rule("sparse.tokens", "pre_tokens", "pre_tokens and next_tokens keep their default: there is no window")
def tokens(call: SparseCall) -> Any:
    given = call["pre_tokens"], call["next_tokens"]
    return f"{given[0]} with next_tokens {given[1]}" if given != (UNLIMITED, UNLIMITED) else None


FORM = (
    layout_query,
    layout_key,
    query_rank,
    key_rank,
    empty,
    lengths_form_query,
    lengths_form_key,
    lengths_required_query,
    lengths_required_key,
    block_table,
)
RULES = (
    lengths_count_query,
    lengths_count_key,
    block_table_rows,
    key_batch,
    key_heads,
    block_size,
    block_size_limit,
    sparse_mode,
    tokens,
)
