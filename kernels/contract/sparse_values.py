"""Lightning indexers and sparse attention: the values of lengths and block ids, where they are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .facts import host_tensor, int_values, proven
from .lengths import bad_block, not_cumulative, out_of_range
from .rule import rule
from .sparse_call import SparseCall


class SparseValues:
    def __init__(self, call: SparseCall, arguments: Mapping[str, Any]) -> None:
        self.call = call
        self.argument_name = call.argument_name
        self.query = int_values(arguments.get("actual_seq_lengths_query"))
        self.key = int_values(arguments.get(call.key_lengths))
        self.block_table = host_tensor(arguments.get("block_table"))
        self.sparse_indices = host_tensor(arguments.get("sparse_indices"))


@rule("sparse.lengths.query", "actual_seq_lengths_query", "TND: cumulative, up to T; BSND: within 0 and S")
def query_values(values: SparseValues) -> Any:
    call = values.call
    if call.layout_query == "TND":
        return not_cumulative(values.query, call.per_token[0])
    return out_of_range(values.query, call.per_token[1])


@rule("sparse.lengths.key", "key_lengths", "TND: cumulative, up to T; otherwise per request, within 0 and S")
def key_values(values: SparseValues) -> Any:
    call, key = values.call, values.call.tensor("key")
    if call.layout_key == "TND":
        return not_cumulative(values.key, key.shape[0])
    return out_of_range(values.key) if call.paged else out_of_range(values.key, key.shape[1])


@rule("sparse.block_table.columns", "block_table", "a row of it covers the longest of the key lengths")
def columns(values: SparseValues) -> Any:
    call = values.call
    table, key = call.optional("block_table"), call.tensor("key")
    if table is None or not values.key or not proven(table.shape[1] * key.shape[1] < max(values.key)):
        return None
    return f"{table} with blocks of {key.shape[1]}, for {max(values.key)} keys"


@rule(
    "sparse.block_table.ids",
    "block_table",
    "the block ids that lengths reach are within 0 and the cache's blocks",
)
def block_ids(values: SparseValues) -> Any:
    if not values.call.paged:
        return None
    blocks, size = values.call.tensor("key").shape[:2]
    return bad_block(values.block_table, values.key, size, blocks)


RULES = (query_values, key_values, columns, block_ids)
