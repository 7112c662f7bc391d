"""FIA: attention sinks, a shared prefix and left padding."""

from __future__ import annotations

from typing import Any

import torch

from ..lengths import INTEGERS
from .facts import proven, unequal
from .fia_call import FiaCall
from .rule import DEVICES, rule

SINK_EXCLUDES = (
    "pse_shift",
    "quant_scale2",
    "key_antiquant_scale",
    "value_antiquant_scale",
    "dequant_scale_query",
)


@rule("fia.sink.layout", "learnable_sink", "it comes with input_layout TND or NTD_TND")
def sink_layout(call: FiaCall) -> Any:
    wrong = call["learnable_sink"] is not None and call["input_layout"] not in ("TND", "NTD_TND")
    return f"given with input_layout {call['input_layout']}" if wrong else None


@rule("fia.sink.shape", "learnable_sink", "it is (num_query_heads,)")
def sink_shape(call: FiaCall) -> Any:
    sink = call.tensor("learnable_sink")
    return sink if sink is not None and unequal(sink.shape, (call.heads,)) else None


@rule("fia.sink.dtype", "learnable_sink", "it is bfloat16", targets=DEVICES)
def sink_dtype(call: FiaCall) -> Any:
    sink = call.tensor("learnable_sink")
    return sink if sink is not None and sink.dtype != torch.bfloat16 else None


@rule("fia.sink.head_dim", "learnable_sink", "it needs a V of at most 128", targets=DEVICES)
def sink_head_dim(call: FiaCall) -> Any:
    wrong = call["learnable_sink"] is not None and proven(call.value_sizes.head_dim > 128)
    return f"given with value {call.value}" if wrong else None


@rule("fia.sink.exclusive", "learnable_sink", "it comes without pse_shift and without quantisation")
def sink_exclusive(call: FiaCall) -> Any:
    given = [call.argument_name(name) for name in SINK_EXCLUDES if call[name] is not None]
    return f"given with {', '.join(given)}" if call["learnable_sink"] is not None and given else None


@rule("fia.prefix.pair", "key_shared_prefix", "key_shared_prefix and value_shared_prefix come together")
def prefix_pair(call: FiaCall) -> Any:
    given = [name for name in ("key_shared_prefix", "value_shared_prefix") if call[name] is not None]
    return f"only {given[0]} given" if len(given) == 1 else None


@rule("fia.prefix.shape", "key_shared_prefix", "it has key's dims and dtype, but for B, which is 1, and S")
def prefix_shape(call: FiaCall) -> Any:
    prefix = call.tensor("key_shared_prefix")
    if prefix is None or call.paged or call.layout.packed:
        return None
    wrong = len(prefix.shape) != len(call.key.shape) or prefix.dtype != call.key.dtype
    if not wrong:
        mine, theirs = call.kv_sizes(prefix), call.key_sizes
        wrong = unequal((mine.batch, mine.heads, mine.head_dim), (1, theirs.heads, theirs.head_dim))
    return f"{prefix} with key {call.key}" if wrong else None


@rule("fia.prefix.unsupported", "key_shared_prefix", "packed layouts (T) take none")
def prefix_packed(call: FiaCall) -> Any:
    return call["key_shared_prefix"] if call.layout.packed else None


def _padding(call: FiaCall, name: str, lengths: str) -> Any:
    padding = call.tensor(name)
    if padding is None:
        return None
    wrong = padding.dtype not in INTEGERS or proven(padding.numel != 1)
    wrong = wrong or call[lengths] is None or call.layout.packed
    return f"{padding} with {call.argument_name(lengths)} {call[lengths]}" if wrong else None


PADDING = "left padding is one integer, needs lengths, and doesn't go with packed layouts"


@rule("fia.padding.query", "query_padding_size", PADDING)
def query_padding(call: FiaCall) -> Any:
    return _padding(call, "query_padding_size", "actual_seq_lengths")


@rule("fia.padding.kv", "kv_padding_size", PADDING)
def kv_padding(call: FiaCall) -> Any:
    return _padding(call, "kv_padding_size", "actual_seq_lengths_kv")


RULES = (
    sink_layout,
    sink_shape,
    sink_dtype,
    sink_head_dim,
    sink_exclusive,
    prefix_pair,
    prefix_shape,
    prefix_packed,
    query_padding,
    kv_padding,
)
