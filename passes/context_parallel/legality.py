"""Which lowered attention calls mean the same over ranks, and why the others don't."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from npu_compile.kernels.contract.packed_dims import packs
from npu_compile.kernels.layouts import LAYOUTS
from npu_compile.kernels.targets import Target
from npu_compile.passes.values import aten, is_call, same

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

FILLS = (aten.masked_fill, aten.where)
VIEWS = (aten.transpose, aten.permute, aten.reshape, aten.view, aten.contiguous, aten.slice, aten.bmm)
"""What stands between a call and such a fill; ``bmm`` is by the weights of absorbed MLA."""


def prefill_reason(call: FiaCall) -> str | None:
    """Why ``call`` can't be computed block by block over ranks; None where it can.

    It can where each query's keys follow from positions alone: causal or a causal window, over as
    many keys as there are rows.
    """
    mode, packed = call.argument("sparse_mode"), LAYOUTS[call.input_layout].packed
    if mode not in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND):
        return f"sparse_mode {mode} is not causal, and its mask is not known for tokens of other ranks"
    if mode == LEFT_UP_CAUSAL and not _square(call):
        return "sparse_mode 2 aligned top-left with more keys than queries means nothing across ranks"
    if mode == BAND and call.argument("next_tokens") != 0:
        return f"a band with next_tokens {call.argument('next_tokens')} reads tokens after the query's"
    batch = _batch(call)
    if not same(batch, 1):
        return f"batch {batch}: the sequences of a step are packed into one row of tokens"
    lengths = {call.names.q_lengths, call.names.kv_lengths} if packed else set()
    return _unknown_arguments(call, {*SHAPE, *lengths, "atten_mask", "learnable_sink"})


def decode_reason(call: FiaCall, ranks: int, heads_sharded: bool) -> str | None:
    """Why ``call`` can't be merged from calls over each rank's keys; None where it can.

    It can where no key's weight depends on its place: without a mask, bounded by lengths only.
    """
    mode = call.argument("sparse_mode")
    if mode != 0 or call.argument("atten_mask") is not None:
        return f"a mask (sparse_mode {mode}) hides keys by their place, which differs from rank to rank"
    letters = LAYOUTS[call.input_layout].query
    if "S" in letters and not same(_size(call.query, letters.index("S")), 1):
        return "several query tokens per sequence hide each other's keys, which differ from rank to rank"
    if heads_sharded and (call.num_heads * ranks) % call.num_key_value_heads:
        heads = f"{call.num_heads} heads on each of {ranks} ranks"
        return f"{heads} can't share {call.num_key_value_heads} K/V heads evenly"
    lengths = {call.names.q_lengths, call.names.kv_lengths, "block_table", "block_size"}
    return _unknown_arguments(call, {*SHAPE, *lengths})


def packed_head_dim(call: FiaCall, target: Target) -> int:
    """The head dim to pad a packed call to on ``target``; 0 where it is taken as it is.

    Larger ones than 128, to which all smaller ones can be padded, are left for the contract to judge.
    """
    if target is Target.CPU or call.argument("query_rope") is not None:
        return 0
    merged = LAYOUTS[call.input_layout].query == "BSH"
    query = int(_size(call.query, -1)) // (call.num_heads if merged else 1)
    value = int(_size(call.value, -1)) // (call.num_key_value_heads if merged else 1)
    taken = packs("TND", query, value, call.num_heads, call.num_key_value_heads)
    return 0 if taken or max(query, value) > 128 else 128


def empty_row_reason(node: fx.Node) -> str | None:
    """Why rows that see no key on *this* rank would be treated wrongly; None where nothing does that.

    A program that fills them (softmax over a finite or -inf float mask) is lowered to a call whose
    query or output is overwritten in such rows, which over ranks may see keys elsewhere.
    """
    query: Any = node.args[0]
    while is_call(query, *VIEWS):
        query = query.args[0]
    if is_call(query, *FILLS) or any(is_call(reader, *FILLS) for reader in _readers(node)):
        return "rows without keys are filled, and a row without keys here may have some on another rank"
    return None


def lse_reason(node: fx.Node) -> str | None:
    """Why the program can't read the log-sum-exp of the call ``node``, if it does."""
    read = (user for user in node.users if is_call(user, operator.getitem) and user.args[1] == 1)
    if any(user.users for user in read):
        return "its log-sum-exp is read (by an attention sink, say), and a rank has that of its own keys only"
    return None


def _readers(node: fx.Node) -> list[fx.Node]:
    """What reads ``node`` or a view of it."""
    readers = list(node.users)
    for reader in readers:
        if is_call(reader, operator.getitem, *VIEWS):
            readers.extend(reader.users)
    return readers


def _unknown_arguments(call: FiaCall, known: set[str]) -> str | None:
    for name, value in call.arguments.items():
        if value is not None and name not in known:
            return f"argument {name} has no known meaning over ranks"
    return None


def _square(call: FiaCall) -> bool:
    letters = LAYOUTS[call.input_layout].query
    place = letters.index("T" if "T" in letters else "S")
    return same(_size(call.query, place), _size(call.key, place))


def _batch(call: FiaCall) -> Any:
    letters = LAYOUTS[call.input_layout].query
    if "B" in letters:
        return _size(call.query, letters.index("B"))
    return _size(call.argument(call.names.q_lengths), 0)


def _size(node: Any, dim: int) -> Any:
    value = node.meta["val"] if isinstance(node, fx.Node) else node
    return value.shape[dim]
