"""FIA: the form of the arguments. Everything else is only looked at when these rules hold."""

from __future__ import annotations

from typing import Any

import torch

from ..layouts import LAYOUTS
from ..lengths import INTEGERS
from .facts import TensorFacts
from .fia_call import FiaCall
from .rule import DEVICES, META, rule

UNDOCUMENTED = ("NSD",)
QUANTISED = (torch.int8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8)
FLOATS = (torch.float16, torch.bfloat16)


@rule(
    "fia.input_layout",
    "input_layout",
    f"it is one of {', '.join(x for x in LAYOUTS if x not in UNDOCUMENTED)}",
)
def input_layout(call: FiaCall) -> Any:
    layout = call["input_layout"]
    return layout if layout not in LAYOUTS or layout in UNDOCUMENTED else None


@rule("fia.num_heads.positive", "num_heads", "it is positive", META)
def num_heads(call: FiaCall) -> Any:
    return call.heads if call.heads <= 0 else None


@rule("fia.num_key_value_heads.sign", "num_key_value_heads", "it is positive, or 0 for as many as num_heads")
def num_key_value_heads(call: FiaCall) -> Any:
    heads = call["num_key_value_heads"]
    return heads if heads < 0 else None


@rule("fia.query.rank", "query", "it has the dims that input_layout names", META)
def query_rank(call: FiaCall) -> Any:
    layout = LAYOUTS.get(call["input_layout"])
    return call.query if layout is not None and len(call.query.shape) != layout.rank else None


def _kv_rank(call: FiaCall, tensor: TensorFacts) -> Any:
    ranks = (3, 4, 5) if call.paged else (len(call.query.shape),)
    return tensor if len(tensor.shape) not in ranks else None


KV_RANK = "it has as many dims as query, or with a block_table 3 (BnBsH), 4 (BnNBsD) or 5 (NZ)"


@rule("fia.key.rank", "key", KV_RANK)
def key_rank(call: FiaCall) -> Any:
    return _kv_rank(call, call.key)


@rule("fia.value.rank", "value", KV_RANK, META)
def value_rank(call: FiaCall) -> Any:
    return _kv_rank(call, call.value)


@rule("fia.block_table.form", "block_table", "it is int32 (B, blocks per request)")
def block_table(call: FiaCall) -> Any:
    table = call.tensor("block_table")
    return table if table is not None and (len(table.shape) != 2 or table.dtype != torch.int32) else None


def _lengths_form(call: FiaCall, name: str) -> Any:
    lengths = call.tensor(name)
    if lengths is None or (lengths.dtype in INTEGERS and len(lengths.shape) == 1):
        return None
    return lengths


LENGTHS_FORM = "sequence lengths are a list of integers or a 1-D tensor of them"


@rule("fia.lengths.form.query", "actual_seq_lengths", LENGTHS_FORM)
def query_lengths(call: FiaCall) -> Any:
    return _lengths_form(call, "actual_seq_lengths")


@rule("fia.lengths.form.kv", "actual_seq_lengths_kv", LENGTHS_FORM)
def kv_lengths(call: FiaCall) -> Any:
    return _lengths_form(call, "actual_seq_lengths_kv")


@rule("fia.dtype.kv", "key", "key and value have one dtype: query's, or a quantised one")
def kv_dtype(call: FiaCall) -> Any:
    key, value, query = call.key.dtype, call.value.dtype, call.query.dtype
    if key == value and (key == query or key in QUANTISED):
        return None
    return f"{key}, with value {value} and query {query}"


@rule("fia.dtype.query", "query", "it is float16, bfloat16 or int8", targets=DEVICES, instead="bfloat16")
def query_dtype(call: FiaCall) -> Any:
    dtype = call.query.dtype
    return dtype if dtype not in (*FLOATS, torch.int8, torch.float8_e4m3fn) else None


HOST_ARGUMENTS = ("actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len")


@rule("fia.device", "query", "all tensors but lengths are on one device")
def device(call: FiaCall) -> Any:
    wanted = call.query.device
    for name, value in call.args.items():
        if isinstance(value, TensorFacts) and value.device != wanted and name not in HOST_ARGUMENTS:
            return f"on {wanted}, with {call.argument_name(name)} on {value.device}"
    return None


RULES = (
    input_layout,
    num_heads,
    num_key_value_heads,
    query_rank,
    key_rank,
    value_rank,
    block_table,
    query_lengths,
    kv_lengths,
    kv_dtype,
    query_dtype,
    device,
)
