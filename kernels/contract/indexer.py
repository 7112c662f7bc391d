"""The lightning indexers, which select the keys that sparse attention reads."""

from __future__ import annotations

from typing import Any

import torch

from .call import differing, strided
from .facts import proven, unequal
from .rule import A2_A3, ASCEND950, DEVICES, META, rule
from .sparse_call import SparseCall

COUNTS = (*range(1, 2049), *range(3072, 8193, 1024))
HEADS_950 = (8, 16, 24, 32, 64)


@rule("indexer.weights", "weights", "it is (B, S, N) or (T, N) of query")
def weights(call: SparseCall) -> Any:
    given, query = call.tensor("weights"), call.tensor("query")
    return f"{given} with query {query}" if unequal(given.shape, query.shape[:-1]) else None


@rule("indexer.head_dim.same", "key", "it has query's D")
def same_head_dim(call: SparseCall) -> Any:
    key, query = call.tensor("key"), call.tensor("query")
    return f"{key} with query {query}" if proven(key.shape[-1] != query.shape[-1]) else None


@rule("indexer.head_dim", "query", "its D is 128", targets=DEVICES)
def head_dim(call: SparseCall) -> Any:
    return call.tensor("query") if proven(call.tensor("query").shape[-1] != 128) else None


@rule("indexer.heads", "query", "it has at most 64 heads", targets=A2_A3)
def heads(call: SparseCall) -> Any:
    return call.tensor("query") if proven(call.heads > 64) else None


@rule("indexer.heads.ascend950", "query", f"it has {', '.join(map(str, HEADS_950))} heads", targets=ASCEND950)
def heads_950(call: SparseCall) -> Any:
    return call.tensor("query") if all(proven(call.heads != n) for n in HEADS_950) else None


@rule("indexer.sparse_count.positive", "sparse_count", "it is positive", META)
def positive(call: SparseCall) -> Any:
    return call["sparse_count"] if call["sparse_count"] <= 0 else None


@rule(
    "indexer.sparse_count",
    "sparse_count",
    "it is 1 to 2048, or 3072 to 8192 in steps of 1024",
    targets=DEVICES,
)
def count(call: SparseCall) -> Any:
    return call["sparse_count"] if call["sparse_count"] not in COUNTS else None


@rule("indexer.dtype.same", "key", "query, key and weights have one dtype, but weights may be float32")
def dtype_same(call: SparseCall) -> Any:
    names = ("query", "key") if call.tensor("weights").dtype == torch.float32 else ("query", "key", "weights")
    return differing(call, names, "dtype")


@rule("indexer.dtype", "query", "it is float16 or bfloat16", targets=DEVICES)
def dtype(call: SparseCall) -> Any:
    query = call.tensor("query")
    return query if query.dtype not in (torch.float16, torch.bfloat16) else None


@rule("indexer.return_value", "return_value", "scores aren't returned for paged keys")
def return_value(call: SparseCall) -> Any:
    return "True" if call["return_value"] and call.paged else None


@rule("indexer.device", "query", "all tensors are on one device")
def device(call: SparseCall) -> Any:
    return differing(call, ("query", "key", "weights", "block_table"), "device")


@rule("indexer.contiguous", "query", "query, key and weights are contiguous", targets=A2_A3)
def contiguous(call: SparseCall) -> Any:
    return strided(call, ("query", "key", "weights"))


@rule(
    "quant_indexer.mode", "query_quant_mode", "query_quant_mode and key_quant_mode are 0, per token and head"
)
def quant_mode(call: SparseCall) -> Any:
    modes = call["query_quant_mode"], call["key_quant_mode"]
    return f"{modes[0]} with key_quant_mode {modes[1]}" if modes != (0, 0) else None


@rule("quant_indexer.dtype", "query", "query and key are int8, or on 950 float8_e4m3fn")
def quant_dtype(call: SparseCall) -> Any:
    dtypes = {call.tensor(name).dtype for name in ("query", "key")}
    return None if dtypes in ({torch.int8}, {torch.float8_e4m3fn}) else _query_and_key(call)


def _query_and_key(call: SparseCall) -> str:
    return f"{call.tensor('query')} with key {call.tensor('key')}"


@rule("quant_indexer.dtype.device", "query", "query and key are int8", targets=A2_A3)
def quant_dtype_device(call: SparseCall) -> Any:
    return _query_and_key(call) if call.tensor("query").dtype != torch.int8 else None


@rule("quant_indexer.query_scale", "query_dequant_scale", "it is (B, S, N) or (T, N) of query")
def query_scale(call: SparseCall) -> Any:
    scale, query = call.tensor("query_dequant_scale"), call.tensor("query")
    return f"{scale} with query {query}" if unequal(scale.shape, query.shape[:-1]) else None


@rule("quant_indexer.key_scale", "key_dequant_scale", "it has key's shape without D")
def key_scale(call: SparseCall) -> Any:
    scale, key = call.tensor("key_dequant_scale"), call.tensor("key")
    return f"{scale} with key {key}" if unequal(scale.shape, key.shape[:-1]) else None


SHARED = (weights, same_head_dim, head_dim, heads, heads_950, positive, count, device, contiguous)
RULES = (*SHARED, dtype_same, dtype, return_value)
QUANT_RULES = (*SHARED, quant_mode, quant_dtype, quant_dtype_device, query_scale, key_scale)
