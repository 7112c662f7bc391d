"""FIA: the values of lengths and block ids. Skipped where they aren't known yet."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from .facts import host_tensor, int_values, proven
from .fia_call import FiaCall
from .lengths import bad_block, not_cumulative, out_of_range, per_request
from .rule import DEVICES, rule


class FiaValues:
    """A call whose form is known to be right, with the values that its lengths and table have."""

    def __init__(self, call: FiaCall, arguments: Mapping[str, Any]) -> None:
        self.call = call
        self.argument_name = call.argument_name
        names = {name: call.argument_name(name) for name in ("actual_seq_lengths", "actual_seq_lengths_kv")}
        self.given = {name: arguments.get(names[name]) for name in names}
        self.query = int_values(self.given["actual_seq_lengths"])
        self.kv = int_values(self.given["actual_seq_lengths_kv"])
        self.block_table = host_tensor(arguments.get("block_table"))
        self.pse_shift = host_tensor(arguments.get("pse_shift"))

    def lengths(self) -> tuple[list[int] | None, list[int] | None]:
        """Lengths of queries and keys per request, None where unknown or not given."""
        if not self.call.layout.packed:
            return self.query, self.kv
        kv = self.kv if self.call.paged else per_request(self.kv)
        return per_request(self.query), kv


def _not_integers(values: FiaValues, name: str) -> Any:
    given = values.given[name]
    if not isinstance(given, (list, tuple)) or all(type(x) is int for x in given):
        return None
    wrong = [x for x in given if isinstance(x, bool) or not isinstance(x, (Integral, torch.SymInt))]
    return given if wrong else None


@rule("fia.lengths.integers.query", "actual_seq_lengths", "sequence lengths are integers")
def integers_query(values: FiaValues) -> Any:
    return _not_integers(values, "actual_seq_lengths")


@rule("fia.lengths.integers.kv", "actual_seq_lengths_kv", "sequence lengths are integers")
def integers_kv(values: FiaValues) -> Any:
    return _not_integers(values, "actual_seq_lengths_kv")


@rule("fia.lengths.range.query", "actual_seq_lengths", "lengths per request are within 0 and query's S")
def range_query(values: FiaValues) -> Any:
    call = values.call
    # With one query token the operator doesn't look at them.
    return None if call.layout.packed or call.decode else out_of_range(values.query, call.sizes.seq)


@rule("fia.lengths.range.kv", "actual_seq_lengths_kv", "lengths per request are within 0 and key's S")
def range_kv(values: FiaValues) -> Any:
    call = values.call
    if call.paged:
        return out_of_range(values.kv)
    return None if call.layout.packed else out_of_range(values.kv, call.kv_capacity)


@rule(
    "fia.block_table.columns",
    "block_table",
    "a row of it covers the longest of the key lengths, which are per request, not cumulative",
)
def columns(values: FiaValues) -> Any:
    call, table = values.call, values.call.tensor("block_table")
    if table is None or not values.kv or not proven(call.kv_capacity < max(values.kv)):
        return None
    return f"{table} with blocks of {call['block_size']}, for {max(values.kv)} keys"


CUMULATIVE = "lengths of packed tokens are cumulative: they don't decrease, and the last is T"


@rule("fia.lengths.cumulative.query", "actual_seq_lengths", CUMULATIVE)
def cumulative_query(values: FiaValues) -> Any:
    return not_cumulative(values.query, values.call.sizes.seq) if values.call.layout.packed else None


@rule("fia.lengths.cumulative.kv", "actual_seq_lengths_kv", CUMULATIVE)
def cumulative_kv(values: FiaValues) -> Any:
    call = values.call
    return not_cumulative(values.kv, call.key_sizes.seq) if call.layout.packed and not call.paged else None


@rule(
    "fia.lengths.causal_packed",
    "actual_seq_lengths_kv",
    "packed attention in sparse_mode 3 has no request with fewer keys than queries",
)
def causal_packed(values: FiaValues) -> Any:
    if values.call.mode != 3 or not values.call.layout.packed:
        return None
    query, kv = values.lengths()
    if query is None or kv is None:
        return None
    bad = next(((b, q, k) for b, (q, k) in enumerate(zip(query, kv, strict=False)) if k < q), None)
    return f"{bad[2]} keys for {bad[1]} queries in request {bad[0]}" if bad else None


@rule(
    "fia.lengths.band",
    "pre_tokens",
    "in sparse_mode 4, pre_tokens >= -queries and next_tokens >= -keys of every request",
    source="ops-transformer docs",
)
def band(values: FiaValues) -> Any:
    call = values.call
    pre, following = call["pre_tokens"], call["next_tokens"]
    if call.mode != 4 or (pre >= 0 and following >= 0):
        return None
    query, kv = values.lengths()
    wrong = (query and pre < -min(query)) or (kv and following < -min(kv))
    return f"{pre} with next_tokens {following}, queries {query} and keys {kv}" if wrong else None


@rule(
    "fia.mla.request_len",
    "actual_seq_lengths",
    "MLA with D 512 takes 1 to 16 query tokens per request",
    targets=DEVICES,
)
def request_len(values: FiaValues) -> Any:
    if not (values.call.absorbed and values.call.layout.packed):
        return None
    query, _ = values.lengths()
    return f"{max(query)} in one request" if query and max(query) > 16 else None


@rule("fia.cache.blocks", "key", "a cache has as many blocks as its requests use together", targets=DEVICES)
def blocks(values: FiaValues) -> Any:
    call = values.call
    if not call.paged or values.kv is None:
        return None
    used = sum(-(-x // call["block_size"]) for x in values.kv)
    return f"{call.key_sizes.batch} blocks for {used}" if proven(call.key_sizes.batch < used) else None


@rule(
    "fia.block_table.ids",
    "block_table",
    "the block ids that lengths reach are within 0 and the cache's blocks; the operator doesn't check them",
)
def block_ids(values: FiaValues) -> Any:
    call = values.call
    if not call.paged:
        return None
    return bad_block(values.block_table, values.kv, call["block_size"], call.key_sizes.batch)


@rule(
    "fia.bug.pse_infinite",
    "pse_shift",
    "-inf in it gives NaN",
    source="llama.cpp-omni PR 89",
    targets=DEVICES,
    instead="atten_mask",
)
def pse_infinite(values: FiaValues) -> Any:
    pse = values.pse_shift
    return "one with -inf" if pse is not None and torch.isneginf(pse).any() else None


RULES = (
    integers_query,
    integers_kv,
    range_query,
    range_kv,
    columns,
    cumulative_query,
    cumulative_kv,
    causal_packed,
    band,
    request_len,
    blocks,
    block_ids,
    pse_infinite,
)
