"""Attention of a continuous batch: the requests' query tokens lie one after the other, (T, N, D)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..kv_quant.int8 import nz_pages
from .fia import attend, host, packs
from .kv_views import Antiquant, PackedKV, PagedKV
from .rows import Rows


def attend_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    view: PackedKV,
    scale: float,
    sink: Tensor | None,
    causal_mask: Tensor,
) -> Tensor:
    """(T, N, Dv) for ``key`` (Tk, N_kv, D) and ``value`` (Tk, N_kv, Dv), packed as the queries are.

    Causal from the bottom right: a request's queries are its last tokens.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    arguments: dict[str, Any] = {
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "scale": scale,
        "atten_mask": causal_mask,
        "sparse_mode": 3,
    }
    if view.window is not None:
        # pre_tokens counts the keys before the query's own, which is one of the window.
        arguments.update(sparse_mode=4, pre_tokens=view.window - 1, next_tokens=0)
    if packs(query, value.shape[-1], heads, kv_heads):
        return attend(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            sink,
            input_layout="TND",
            actual_seq_lengths=host(view.query_lengths),
            actual_seq_lengths_kv=host(view.kv_lengths),
            **arguments,
        )
    queries, keys = Rows.of(view.query_lengths), Rows.of(view.kv_lengths)
    out = attend(
        queries.batch(query),
        keys.batch(key),
        keys.batch(value),
        sink,
        input_layout="BSND",
        actual_seq_lengths=queries.lengths,
        actual_seq_lengths_kv=keys.lengths,
        **arguments,
    )
    return queries.packed(out)


def attend_paged(
    query: Tensor, view: PagedKV, scale: float, sink: Tensor | None, causal_mask: Tensor
) -> Tensor:
    """(T, N, D): every request attends to its own blocks, causally, the call's tokens being its last."""
    heads = query.shape[1]
    block_size, kv_heads, dim = view.key_cache.shape[1:]
    arguments: dict[str, Any] = {
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "scale": scale,
        "block_table": view.block_table,
        "block_size": block_size,
        "actual_seq_lengths_kv": host(view.kv_lengths),
    }
    if view.antiquant is not None:
        return _attend_int8(query, view, view.antiquant, sink, arguments)
    caches = view.key_cache.flatten(2), view.value_cache.flatten(2)
    packed = packs(query, dim, heads, kv_heads, paged=True)
    if view.decode and (sink is None or not packed):
        # One token sees all its request's keys: no mask, which paged decode gets wrong on devices.
        return attend(query.unsqueeze(1), *caches, sink, input_layout="BSND", **arguments).squeeze(1)
    if not view.decode:
        arguments.update(atten_mask=causal_mask, sparse_mode=3)
    if packed:
        arguments["actual_seq_lengths"] = host(view.query_lengths)
        return attend(query.contiguous(), *caches, sink, input_layout="TND", **arguments)
    queries = Rows.of(view.query_lengths)
    arguments["actual_seq_lengths"] = queries.lengths
    return queries.packed(attend(queries.batch(query), *caches, sink, input_layout="BSND", **arguments))


def _attend_int8(
    query: Tensor, view: PagedKV, antiquant: Antiquant, sink: Tensor | None, arguments: dict[str, Any]
) -> Tensor:
    if not view.decode:
        raise ValueError("an int8 cache is read in place by steps of one token per request only")
    arguments.update(
        key_antiquant_scale=antiquant.key_scale,
        value_antiquant_scale=antiquant.value_scale,
        key_antiquant_mode=antiquant.mode,
        value_antiquant_mode=antiquant.mode,
    )
    if not antiquant.nz:
        caches = view.key_cache.flatten(2), view.value_cache.flatten(2)
        return attend(query.unsqueeze(1), *caches, sink, input_layout="BSND", **arguments).squeeze(1)
    # vllm-ascend reads NZ pages with this layout, and in high performance mode.
    caches = nz_pages(view.key_cache), nz_pages(view.value_cache)
    out = attend(query.unsqueeze(2), *caches, sink, input_layout="BNSD", inner_precise=1, **arguments)
    return out.squeeze(2)
