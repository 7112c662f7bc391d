"""Legal calls of the indexers and sparse attention, for the contract tests to break."""

from __future__ import annotations

from typing import Any

import torch

from .contract_calls import lengths, table, zeros


def indexer(b: int = 2, q: int = 3, s: int = 20, n: int = 8, d: int = 128, **more: Any) -> dict[str, Any]:
    dtype = torch.float16
    return {
        "query": zeros(b, q, n, d, dtype=dtype),
        "key": zeros(b, s, 1, d, dtype=dtype),
        "weights": zeros(b, q, n, dtype=dtype),
        "sparse_count": 8,
        **more,
    }


def paged_keys(args: dict[str, Any], side: str = "key", size: int = 16) -> dict[str, Any]:
    """The same indexer or sparse attention call on a paged cache of 5 blocks."""
    kind = args["key"]
    cache = zeros(5, size, 1, kind.shape[-1], dtype=kind.dtype)
    more = {"key": cache, f"layout_{side}": "PA_BSND", f"actual_seq_lengths_{side}": lengths(20, 6)}
    more |= {"block_table": table([4, 1], [0, 3])}
    if "value" in args:
        more["value"] = cache
    if args.get("key_rope") is not None:
        more["key_rope"] = zeros(5, size, 1, args["key_rope"].shape[-1])
    return {**args, **more}


def sparse(
    b: int = 2, q: int = 3, s: int = 20, n: int = 4, d: int = 512, count: int = 4, **more: Any
) -> dict[str, Any]:
    key = zeros(b, s, 1, d)
    return {
        "query": zeros(b, q, n, d),
        "key": key,
        "value": key,
        "sparse_indices": lengths(*range(count)).repeat(b, q, 1, 1),
        "scale_value": 0.07,
        "query_rope": zeros(b, q, n, 64),
        "key_rope": zeros(b, s, 1, 64),
        "attention_mode": 2,
        **more,
    }


def kv_quant_sparse(
    b: int = 2, q: int = 3, s: int = 20, n: int = 4, count: int = 4, **more: Any
) -> dict[str, Any]:
    key = zeros(b, s, 1, 656, dtype=torch.int8)
    return {
        "query": zeros(b, q, n, 576),
        "key": key,
        "value": key,
        "sparse_indices": lengths(*range(count)).repeat(b, q, 1, 1),
        "scale_value": 0.07,
        "key_quant_mode": 2,
        "value_quant_mode": 2,
        "attention_mode": 2,
        **more,
    }


def quant_indexer(**more: Any) -> dict[str, Any]:
    args = indexer()
    half, int8 = torch.float16, torch.int8
    return {
        "query": zeros(*args["query"].shape, dtype=int8),
        "key": zeros(*args["key"].shape, dtype=int8),
        "weights": args["weights"],
        "query_dequant_scale": zeros(2, 3, 8, dtype=half),
        "key_dequant_scale": zeros(2, 20, 1, dtype=half),
        "query_quant_mode": 0,
        "key_quant_mode": 0,
        **more,
    }
