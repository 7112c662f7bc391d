"""Which lowered attention calls mean the same over ranks, and why the others don't."""

from __future__ import annotations

from typing import Any

from torch import fx

from npu_compile.kernels.layouts import LAYOUTS
from npu_compile.passes.values import same

from .fia_call import FiaCall
from .prefill import BAND, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL

SHAPE = frozenset(
    (
        "num_heads", "num_query_heads", "num_key_value_heads", "scale", "softmax_scale", "input_layout",
        "pre_tokens", "next_tokens", "sparse_mode", "inner_precise", "query_rope", "key_rope",
        "softmax_lse_flag", "return_softmax_lse",
    )
)  # fmt: skip
"""Arguments that mean the same for any part of the queries or keys."""


def prefill_reason(call: FiaCall) -> str | None:
    """Why ``call`` can't be computed block by block over ranks; None where it can.

    It can where each query's keys follow from positions alone: causal or a causal window, over as
    many keys as there are rows.
    """
    mode = call.argument("sparse_mode")
    if mode not in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND):
        return f"sparse_mode {mode} is not causal, and its mask is not known for tokens of other ranks"
    if mode == LEFT_UP_CAUSAL and not _square(call):
        return "sparse_mode 2 aligned top-left with more keys than queries means nothing across ranks"
    if mode == BAND and call.argument("next_tokens") != 0:
        return f"a band with next_tokens {call.argument('next_tokens')} reads tokens after the query's"
    layout = LAYOUTS[call.input_layout].query
    batch = _size(call.query, layout.index("B")) if "B" in layout else 1
    if batch != 1:
        return f"batch {batch}: the sequences of a step are packed into one row of tokens"
    return _unknown_arguments(call, {*SHAPE, "atten_mask", "learnable_sink"})


def decode_reason(call: FiaCall, ranks: int, heads_sharded: bool) -> str | None:
    """Why ``call`` can't be merged from calls over each rank's keys; None where it can.

    It can where no key's weight depends on its place: without a mask, bounded by lengths only.
    """
    mode = call.argument("sparse_mode")
    if mode != 0 or call.argument("atten_mask") is not None:
        return f"a mask (sparse_mode {mode}) hides keys by their place, which differs from rank to rank"
    letters = LAYOUTS[call.input_layout].query
    if "S" in letters and _size(call.query, letters.index("S")) != 1:
        return "several query tokens per sequence hide each other's keys, which differ from rank to rank"
    if heads_sharded and (call.num_heads * ranks) % call.num_key_value_heads:
        heads = f"{call.num_heads} heads on each of {ranks} ranks"
        return f"{heads} can't share {call.num_key_value_heads} K/V heads evenly"
    lengths = {call.names.q_lengths, call.names.kv_lengths, "block_table", "block_size"}
    return _unknown_arguments(call, {*SHAPE, *lengths})


def _unknown_arguments(call: FiaCall, known: set[str]) -> str | None:
    for name, value in call.arguments.items():
        if value is not None and name not in known:
            return f"argument {name} has no known meaning over ranks"
    return None


def _square(call: FiaCall) -> bool:
    letters = LAYOUTS[call.input_layout].query
    place = letters.index("T" if "T" in letters else "S")
    return same(_size(call.query, place), _size(call.key, place))


def _size(node: Any, dim: int) -> Any:
    value = node.meta["val"] if isinstance(node, fx.Node) else node
    return value.shape[dim]
