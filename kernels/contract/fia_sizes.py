"""FIA: sizes that have to agree, and lengths that have to be there."""

from __future__ import annotations

from typing import Any

from .facts import TensorFacts, proven, unequal
from .fia_call import FiaCall, KvSizes
from .rule import DEVICES, rule


@rule("fia.query.heads", "query", "its N is num_heads, or its H a multiple of num_heads")
def query_heads(call: FiaCall) -> Any:
    if call.layout.query == "BSH":
        wrong = proven(call.query.shape[2] % call.heads != 0)
    else:
        wrong = proven(call.sizes.heads != call.heads)
    return f"{call.query} with {call.heads} heads" if wrong else None


@rule("fia.num_heads.divisible", "num_heads", "it is a multiple of num_key_value_heads")
def divisible(call: FiaCall) -> Any:
    return f"{call.heads}, over {call.kv_heads}" if proven(call.heads % call.kv_heads != 0) else None


@rule(
    "fia.num_heads.ratio",
    "num_heads",
    "it is at most 64 per key/value head, except for MLA's one latent head",
)
def ratio(call: FiaCall) -> Any:
    if not proven(call.heads > 64 * call.kv_heads) or (call.rope and call.kv_heads == 1):
        return None
    return f"{call.heads}, over {call.kv_heads}"


@rule("fia.key.heads", "key", "its N is num_key_value_heads, or its H a multiple of num_key_value_heads")
def key_heads(call: FiaCall) -> Any:
    wrong = _indivisible(call, call.key) or proven(call.key_sizes.heads != call.kv_heads)
    return f"{call.key} with {call.kv_heads} heads" if wrong else None


def _indivisible(call: FiaCall, tensor: TensorFacts) -> bool:
    """Whether a tensor with all heads in one dim, H, can't be split into them."""
    merged = len(tensor.shape) == 3 and (call.paged or call.layout.query == "BSH")
    return merged and proven(tensor.shape[2] % call.kv_heads != 0)


def _but_head_dim(sizes: KvSizes) -> tuple[Any, ...]:
    return sizes.batch, sizes.heads, sizes.seq


@rule("fia.value.shape", "value", "it is laid out as key is, and may differ from key in D only")
def value_shape(call: FiaCall) -> Any:
    wrong = len(call.key.shape) != len(call.value.shape) or _indivisible(call, call.value)
    wrong = wrong or unequal(_but_head_dim(call.value_sizes), _but_head_dim(call.key_sizes))
    return f"{call.value} with key {call.key}" if wrong else None


@rule("fia.value.head_dim", "value", "its D is key's, unless input_layout is packed", targets=DEVICES)
def value_head_dim(call: FiaCall) -> Any:
    dims = call.value_sizes.head_dim, call.key_sizes.head_dim
    return (
        f"{call.value} with key {call.key}" if not call.layout.packed and proven(dims[0] != dims[1]) else None
    )


@rule("fia.key.batch", "key", "it has query's B")
def key_batch(call: FiaCall) -> Any:
    if call.paged or call.layout.packed:
        return None
    return f"{call.key} with query {call.query}" if proven(call.key_sizes.batch != call.sizes.batch) else None


@rule("fia.key.head_dim", "key", "it has query's D")
def key_head_dim(call: FiaCall) -> Any:
    return (
        f"{call.key} with query {call.query}"
        if proven(call.key_sizes.head_dim != call.sizes.head_dim)
        else None
    )


@rule("fia.block_size.axis", "block_size", "it is the number of tokens in a block of key")
def block_size_axis(call: FiaCall) -> Any:
    size = call["block_size"]
    return f"{size} with key {call.key}" if call.paged and proven(call.key_sizes.seq != size) else None


@rule("fia.block_table.rows", "block_table", "it has one row per request")
def block_table_rows(call: FiaCall) -> Any:
    table, batch = call.tensor("block_table"), call.batch
    if table is None or batch is None or not proven(table.shape[0] != batch):
        return None
    return f"{table} with {batch} requests"


@rule("fia.lengths.required.query", "actual_seq_lengths", "packed queries (T) need cumulative lengths")
def query_lengths(call: FiaCall) -> Any:
    return "None" if call.layout.packed and call["actual_seq_lengths"] is None else None


@rule("fia.lengths.required.kv", "actual_seq_lengths_kv", "packed keys (T) and paged keys need lengths")
def kv_lengths(call: FiaCall) -> Any:
    return "None" if (call.layout.packed or call.paged) and call["actual_seq_lengths_kv"] is None else None


def _count(call: FiaCall, name: str) -> Any:
    count, batch = call.count(name), call.batch
    if count is None or batch is None:
        return None
    wrong = proven(count != batch)
    if not call.layout.packed:
        wrong = proven(count != 1) and proven(count < batch)
    return f"{count} lengths for {batch} requests" if wrong else None


@rule(
    "fia.lengths.count.query", "actual_seq_lengths", "there is one length for all requests, or one for each"
)
def query_count(call: FiaCall) -> Any:
    return None if call.decode else _count(call, "actual_seq_lengths")


@rule(
    "fia.lengths.count.kv",
    "actual_seq_lengths_kv",
    "there is one length per request, or one for all unless packed",
)
def kv_count(call: FiaCall) -> Any:
    return _count(call, "actual_seq_lengths_kv")


@rule("fia.lengths.limit", "actual_seq_lengths", "packed queries have at most 4096 requests", targets=DEVICES)
def length_limit(call: FiaCall) -> Any:
    batch = call.batch
    return batch if call.layout.packed and batch is not None and proven(batch > 4096) else None


@rule(
    "fia.input_layout.one_token", "input_layout", "BNSD_BSND needs more than one query token", targets=DEVICES
)
def one_token(call: FiaCall) -> Any:
    return call["input_layout"] if call["input_layout"] == "BNSD_BSND" and call.decode else None


RULES = (
    query_heads,
    divisible,
    ratio,
    key_heads,
    value_shape,
    value_head_dim,
    key_batch,
    key_head_dim,
    block_size_axis,
    block_table_rows,
    query_lengths,
    kv_lengths,
    query_count,
    kv_count,
    length_limit,
    one_token,
)
