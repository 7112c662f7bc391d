"""Sparse flash attention: softmax over the keys that ``sparse_indices`` select."""

from __future__ import annotations

from typing import Any

import torch

from .call import differing, strided
from .facts import proven, unequal
from .rule import A2_A3, ASCEND950, DEVICES, rule
from .sparse_call import SparseCall
from .sparse_values import SparseValues

HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)


@rule("sfa.attention_mode", "attention_mode", "it is 2: MLA absorbed, with value the same as key")
def attention_mode(call: SparseCall) -> Any:
    return call["attention_mode"] if call["attention_mode"] != 2 else None


@rule("sfa.value", "value", "it has key's shape")
def value(call: SparseCall) -> Any:
    given, key = call.optional("value"), call.tensor("key")
    return f"{given} with key {key}" if given is not None and unequal(given.shape, key.shape) else None


@rule("sfa.value.none", "value", "leaving it out needs CANN 9.2")
def value_none(call: SparseCall) -> Any:
    return "None" if call["value"] is None else None


@rule("sfa.indices", "sparse_indices", "it is int32 (B, S, N_kv, count) or (T, N_kv, count), not empty")
def indices(call: SparseCall) -> Any:
    given = call.tensor("sparse_indices")
    wrong = given.dtype != torch.int32 or unequal(given.shape[:-1], (*call.per_token, call.kv_heads))
    return given if wrong or proven(given.numel == 0) else None


@rule("sfa.dtype", "key", "query, key and value have one dtype")
def dtype(call: SparseCall) -> Any:
    return differing(call, ("query", "key", "value", "query_rope", "key_rope"), "dtype")


@rule("sfa.dtype.device", "query", "it is float16 or bfloat16", targets=DEVICES)
def dtype_device(call: SparseCall) -> Any:
    query = call.tensor("query")
    return query if query.dtype not in (torch.float16, torch.bfloat16) else None


@rule("sfa.rope", "query_rope", "query_rope and key_rope are given, shaped as query and key but for D")
def rope(call: SparseCall) -> Any:
    for name in ("query", "key"):
        part, whole = call.optional(f"{name}_rope"), call.tensor(name)
        if part is None or unequal(part.shape[:-1], whole.shape[:-1]):
            return f"{call['query_rope']} with key_rope {call['key_rope']}"
    return None


@rule("sfa.head_dim.same", "key", "it has query's D")
def same_head_dim(call: SparseCall) -> Any:
    key, query = call.tensor("key"), call.tensor("query")
    return f"{key} with query {query}" if proven(key.shape[-1] != query.shape[-1]) else None


@rule("sfa.head_dim", "query", "its D is 512 and the ropes' D 64", targets=DEVICES)
def head_dim(call: SparseCall) -> Any:
    query, part = call.tensor("query"), call.optional("query_rope")
    wrong = proven(query.shape[-1] != 512) or (part is not None and proven(part.shape[-1] != 64))
    return f"{query} with query_rope {part}" if wrong else None


@rule("sfa.heads", "query", "it has 1, 2, 4, 8, 16, 32, 64 or 128 heads", targets=A2_A3)
def heads(call: SparseCall) -> Any:
    return call.tensor("query") if all(proven(call.heads != n) for n in HEADS) else None


@rule("sfa.heads.ascend950", "query", "it has at most 128 heads", targets=ASCEND950)
def heads_950(call: SparseCall) -> Any:
    return call.tensor("query") if proven(call.heads > 128) else None


@rule(
    "sfa.sparse_block_size",
    "sparse_block_size",
    "it is a power of 2 up to 128, and divides a block of the cache",
)
def sparse_block_size(call: SparseCall) -> Any:
    size = call["sparse_block_size"]
    wrong = size not in POWERS or (call.paged and proven(call.tensor("key").shape[1] % size != 0))
    return size if wrong else None


@rule("sfa.sparse_block_size.ascend950", "sparse_block_size", "it is 1", targets=ASCEND950)
def sparse_block_size_950(call: SparseCall) -> Any:
    return call["sparse_block_size"] if call["sparse_block_size"] != 1 else None


@rule("sfa.sinks", "sinks", "it is float32 (N,)")
def sinks(call: SparseCall) -> Any:
    given = call.optional("sinks")
    wrong = given is not None and (given.dtype != torch.float32 or unequal(given.shape, (call.heads,)))
    return given if wrong else None


@rule("sfa.sinks.device", "sinks", "they are for 950 only", targets=A2_A3)
def sinks_device(call: SparseCall) -> Any:
    return call["sinks"]


@rule(
    "sfa.lse.paged",
    "return_softmax_lse",
    "with paged keys the statistics have a wrong shape: block_size is taken for N_kv",
    source="torch_npu meta function",
)
def lse_paged(call: SparseCall) -> Any:
    return "True" if call["return_softmax_lse"] and call.paged else None


@rule("sfa.device", "query", "all tensors are on one device")
def device(call: SparseCall) -> Any:
    names = ("query", "key", "value", "sparse_indices", "query_rope", "key_rope", "block_table", "sinks")
    return differing(call, names, "device")


@rule("sfa.contiguous", "query", "all tensors are contiguous", targets=A2_A3)
def contiguous(call: SparseCall) -> Any:
    return strided(call, ("query", "key", "value", "sparse_indices", "query_rope", "key_rope"))


@rule(
    "sfa.indices.values", "sparse_indices", "a row has different block numbers within the keys, then only -1"
)
def index_values(values: SparseValues) -> Any:
    given = _rows_in_use(values)
    if given is None:
        return None
    valid = given >= 0
    if (given < -1).any() or (valid[..., 1:] & ~valid[..., :-1]).any():
        return "a row with a value below -1, or with -1 before a valid one"
    most = _most_keys(values)
    if most is not None and (given * values.call["sparse_block_size"] >= most).any():
        return f"{int(given.max())}, with at most {most} keys"
    ordered = given.sort(-1).values
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    return "a row with one number twice" if repeated.any() else None


def _rows_in_use(values: SparseValues) -> torch.Tensor | None:
    """``sparse_indices`` without the rows beyond query lengths, which the operator doesn't read."""
    given, lengths = values.sparse_indices, values.query
    if given is None or lengths is None or values.call.layout_query != "BSND":
        return given
    return given[torch.arange(given.shape[1]) < torch.tensor(lengths).unsqueeze(1)]


def _most_keys(values: SparseValues) -> int | None:
    """The most keys a request has, None where unknown."""
    call = values.call
    if values.key is None:
        return call.tensor("key").shape[1] if call.layout_key == "BSND" else None
    if call.layout_key != "TND":
        return max(values.key, default=0)
    return max((b - a for a, b in zip([0, *values.key], values.key, strict=False)), default=0)


@rule(
    "kv_quant_sfa.modes",
    "key_quant_mode",
    "both quant modes are 2, attention_mode 2, quant_scale_repo_mode 1",
)
def quant_modes(call: SparseCall) -> Any:
    names = ("key_quant_mode", "value_quant_mode", "attention_mode", "quant_scale_repo_mode")
    given = tuple(call[name] for name in names)
    if given == (2, 2, 2, 1):
        return None
    return ", ".join(f"{name} {value}" for name, value in zip(names, given, strict=True))


@rule("kv_quant_sfa.scales", "key_dequant_scale", "scales lie in the rows of key and value: none are given")
def quant_scales(call: SparseCall) -> Any:
    return call["key_dequant_scale"] or call["value_dequant_scale"]


@rule("kv_quant_sfa.row", "key", "a row has nope in one byte each, rope in two, and a float32 scale per tile")
def quant_row(call: SparseCall) -> Any:
    key, query = call.tensor("key"), call.tensor("query")
    rope_dim, tile = call["rope_head_dim"], call["tile_size"]
    nope = query.shape[-1] - rope_dim
    row = nope + 2 * rope_dim + 4 * (nope // tile)
    return f"{key} for {row} bytes" if proven(key.shape[-1] != row) else None


@rule("kv_quant_sfa.dtype", "key", "key and value are int8 or float8_e4m3fn, alike")
def quant_dtype(call: SparseCall) -> Any:
    ok = call.tensor("key").dtype in (torch.int8, torch.float8_e4m3fn)
    return differing(call, ("key", "value"), "dtype") or (None if ok else call.tensor("key"))


@rule("kv_quant_sfa.sizes", "query", "its D is 576, tile_size 128, rope_head_dim 64", targets=DEVICES)
def quant_sizes(call: SparseCall) -> Any:
    query, tile, rope_dim = call.tensor("query"), call["tile_size"], call["rope_head_dim"]
    if not proven(query.shape[-1] != 576) and (tile, rope_dim) == (128, 64):
        return None
    return f"{query} with tile_size {tile} and rope_head_dim {rope_dim}"


SHARED = (
    value,
    indices,
    dtype_device,
    heads,
    heads_950,
    sparse_block_size,
    sparse_block_size_950,
    device,
    contiguous,
)
RULES = (
    attention_mode,
    value_none,
    dtype,
    rope,
    same_head_dim,
    head_dim,
    sinks,
    sinks_device,
    lse_paged,
    *SHARED,
)
QUANT_RULES = (quant_modes, quant_scales, quant_row, quant_dtype, quant_sizes, *SHARED)
VALUE_RULES = (index_values,)
