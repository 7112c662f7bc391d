"""Writing K/V to caches and reading it back."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, Values, differing, strided
from .facts import host_tensor, proven, unequal
from .rule import DEVICES, META, rule

INDICES = (torch.int32, torch.int64)
WRITTEN = ("key", "value", "key_cache", "value_cache")


@rule("scatter_pa.cache_mode", "cache_mode", "it is Norm (or None) or PA_NZ, which is the default")
def cache_mode(call: Call) -> Any:
    return call["cache_mode"] if call["cache_mode"] not in (None, "Norm", "PA_NZ") else None


@rule(
    "scatter_pa.rank", "key", "key and value are both 3-D (T, N, D), or both 4-D (B, S, N, D); caches are 4-D"
)
def rank(call: Call) -> Any:
    ranks = tuple(len(call.tensor(name).shape) for name in WRITTEN)
    return f"of ranks {ranks}, caches included" if ranks not in ((3, 3, 4, 4), (4, 4, 4, 4)) else None


@rule("scatter_pa.dtype", "key", "key, value and both caches have one dtype")
def dtype(call: Call) -> Any:
    return differing(call, WRITTEN, "dtype")


@rule("scatter_pa.slots.form", "slot_mapping", "it is int32 or int64 (T,), or (B, N) when key is 4-D")
def slots_form(call: Call) -> Any:
    slots, key = call.tensor("slot_mapping"), call.tensor("key")
    wanted = key.shape[:1] if len(key.shape) == 3 else (key.shape[0], key.shape[2])
    return f"{slots} with key {key}" if slots.dtype not in INDICES or unequal(slots.shape, wanted) else None


@rule("scatter_pa.compressed", "compress_lens", "a 4-D key needs compress_lens and seq_lens")
def compressed(call: Call) -> Any:
    missing = len(call.tensor("key").shape) == 4 and (
        call["compress_lens"] is None or call["seq_lens"] is None
    )
    return f"{call['compress_lens']} with seq_lens {call['seq_lens']}" if missing else None


@rule("scatter_pa.heads", "value", "it has key's shape but for D")
def heads(call: Call) -> Any:
    value, key = call.tensor("value"), call.tensor("key")
    return f"{value} with key {key}" if unequal(value.shape[:-1], key.shape[:-1]) else None


@rule(
    "scatter_pa.cache",
    "key_cache",
    "it is (blocks, block_size, N, D) in Norm, (blocks, N * D / last, block_size, last) in PA_NZ",
)
def cache(call: Call) -> Any:
    for name in ("key", "value"):
        tokens, store = call.tensor(name), call.tensor(f"{name}_cache")
        if len(tokens.shape) == 4:
            wrong = proven(store.shape[2] != 1) or proven(store.shape[3] != tokens.shape[3])
        elif call["cache_mode"] == "PA_NZ":
            wrong = proven(store.shape[1] * store.shape[3] != tokens.shape[1] * tokens.shape[2])
        else:
            wrong = unequal(store.shape[2:], tokens.shape[1:])
        if wrong:
            return f"{store} for {name} {tokens}"
    return None


@rule("scatter_pa.device", "key", "all tensors are on one device")
def device(call: Call) -> Any:
    return differing(call, (*WRITTEN, "slot_mapping"), "device")


@rule("scatter_pa.contiguous", "key", "all tensors are contiguous", targets=DEVICES)
def contiguous(call: Call) -> Any:
    return strided(call, (*WRITTEN, "slot_mapping"))


def _slot_count(call: Call) -> Any:
    store = call.tensor("key_cache")
    return (
        store.shape[0]
        * store.shape[2 if call["cache_mode"] == "PA_NZ" and len(call["key"].shape) == 3 else 1]
    )


@rule(
    "scatter_pa.slots",
    "slot_mapping",
    "slots are within 0 and the cache's, none twice, or -1, which isn't written",
    source="op-plugin docs, ops-transformer kernels",
)
def slots(values: Values) -> Any:
    given, count = host_tensor(values.args["slot_mapping"]), _slot_count(values.call)
    if given is None or not given.numel() or given.dim() != 1:
        return None
    if int(given.min()) < -1 or int(given.max()) >= count:
        return f"{int(given.min())} to {int(given.max())}, with {count} slots"
    written = given[given >= 0]
    return "one slot twice" if written.unique().numel() != written.numel() else None


@rule("gather_pa.form", "block_tables", "it is int32 (B, columns)")
def gather_tables(call: Call) -> Any:
    table = call.tensor("block_tables")
    return table if len(table.shape) != 2 or table.dtype not in INDICES else None


@rule("gather_pa.seq_lens", "seq_lens", "it is (B,), or (B + 1,) from 0 if cumulative")
def gather_lengths(call: Call) -> Any:
    lengths, table = call.tensor("seq_lens"), call.tensor("block_tables")
    wanted = table.shape[0] + 1 if call["is_seq_lens_cumsum"] else table.shape[0]
    return f"{lengths} with block_tables {table}" if unequal(lengths.shape, (wanted,)) else None


@rule("gather_pa.out", "key", "key and value are (T, N, D), of the caches' dtype")
def gather_out(call: Call) -> Any:
    for name in ("key", "value"):
        out, store = call.tensor(name), call.tensor(f"{name}_cache")
        if len(out.shape) != 3 or out.dtype != store.dtype:
            return f"{out} for {name}_cache {store}"
    return None


@rule("gather_pa.device", "key_cache", "all tensors are on one device")
def gather_device(call: Call) -> Any:
    return differing(call, (*WRITTEN, "block_tables", "seq_lens"), "device")


KV_MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")


@rule("kv_rmsnorm.rank", "kv", "kv, cos and sin are 4-D (B, 1, S, D), gamma 1-D, the caches 4-D", META)
def kv_rank(call: Call) -> Any:
    names = ("kv", "cos", "sin", "gamma", "k_cache", "ckv_cache")
    ranks = tuple(len(call.tensor(name).shape) for name in names)
    return f"of ranks {ranks}" if ranks != (4, 4, 4, 1, 4, 4) else None


@rule("kv_rmsnorm.cache_mode", "cache_mode", f"it is one of {', '.join(KV_MODES)}")
def kv_cache_mode(call: Call) -> Any:
    return call["cache_mode"] if call["cache_mode"] not in KV_MODES else None


@rule("kv_rmsnorm.width", "kv", "its D is that of gamma and that of cos together")
def kv_width(call: Call) -> Any:
    if call["v"] is not None:
        return None
    widths = call.tensor("gamma").shape[0], call.tensor("cos").shape[3]
    return (
        f"{call['kv']} for {widths[0]} + {widths[1]}" if proven(call["kv"].shape[3] != sum(widths)) else None
    )


@rule(
    "kv_rmsnorm.caches", "k_cache", "k_cache takes the rope part and ckv_cache the latent one, in this order"
)
def kv_caches(call: Call) -> Any:
    if call["v"] is not None or call["cache_mode"].endswith("NZ"):
        return None
    rope, latent = call.tensor("k_cache"), call.tensor("ckv_cache")
    sizes = call.tensor("cos").shape[3], call.tensor("gamma").shape[0]
    return f"{rope} with ckv_cache {latent}" if unequal((rope.shape[3], latent.shape[3]), sizes) else None


@rule("kv_rmsnorm.index", "index", "it is int64: (B, S) in Norm, (B * S,) in PA modes")
def kv_index(call: Call) -> Any:
    index, kv = call.tensor("index"), call.tensor("kv")
    batch, seq = kv.shape[0], kv.shape[2]
    mode = call["cache_mode"]
    wrong = index.dtype != torch.int64
    if mode == "Norm":
        wrong = wrong or unequal(index.shape, (batch, seq))
    elif not mode.startswith("PA_BLK"):
        wrong = wrong or unequal(index.shape, (batch * seq,))
    return f"{index} with kv {kv}" if wrong else None


@rule("kv_rmsnorm.scales", "k_rope_scale", "k_rope_scale and c_kv_scale come together, with int8 caches")
def kv_scales(call: Call) -> Any:
    given = call["k_rope_scale"], call["c_kv_scale"]
    int8 = call.tensor("k_cache").dtype == torch.int8
    ok = (given[0] is None) == (given[1] is None) == (not int8)
    return None if ok else f"{given[0]} with c_kv_scale {given[1]} and k_cache {call['k_cache']}"


@rule("kv_rmsnorm.device", "kv", "all tensors are on one device")
def kv_device(call: Call) -> Any:
    return differing(call, ("kv", "gamma", "cos", "sin", "index", "k_cache", "ckv_cache"), "device")


@rule(
    "scatter_nd.indices", "indices", "it is int32 or int64, at least 2-D, its last dim at most input's rank"
)
def nd_indices(call: Call) -> Any:
    indices, rank = call.tensor("indices"), len(call.tensor("input").shape)
    wrong = indices.dtype not in INDICES or len(indices.shape) < 2
    return indices if wrong or proven(indices.shape[-1] > rank) else None


@rule(
    "scatter_nd.updates",
    "updates",
    "it has input's dtype, and the shape of indices but the last dim, then input's",
)
def nd_updates(call: Call) -> Any:
    updates, indices, store = call.tensor("updates"), call.tensor("indices"), call.tensor("input")
    depth = indices.shape[-1]
    wrong = updates.dtype != store.dtype
    if isinstance(depth, int):
        wrong = wrong or unequal(updates.shape, (*indices.shape[:-1], *store.shape[depth:]))
    return f"{updates} with indices {indices} and input {store}" if wrong else None


@rule("scatter_nd.device", "input", "all tensors are on one device")
def nd_device(call: Call) -> Any:
    return differing(call, ("input", "indices", "updates"), "device")


@rule("scatter_nd.range", "indices", "indices are within input")
def nd_range(values: Values) -> Any:
    indices, store = host_tensor(values.args["indices"]), values.call.tensor("input")
    if indices is None or not indices.numel():
        return None
    sizes = torch.tensor(store.shape[: indices.shape[-1]])
    wrong = (indices < 0) | (indices >= sizes)
    return f"{int(indices[wrong][0])} in input {store}" if wrong.any() else None


SCATTER_FORM = (cache_mode, rank, dtype)
SCATTER_RULES = (slots_form, compressed, heads, cache, device, contiguous)
SCATTER_VALUES = (slots,)
GATHER_FORM = (gather_tables,)
GATHER_RULES = (gather_lengths, gather_out, gather_device)
KV_FORM = (kv_rank, kv_cache_mode)
KV_RULES = (kv_width, kv_caches, kv_index, kv_scales, kv_device)
ND_FORM = (nd_indices,)
ND_RULES = (nd_updates, nd_device)
ND_VALUES = (nd_range,)
