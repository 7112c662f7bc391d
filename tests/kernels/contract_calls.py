"""Legal calls, as dicts of arguments, for the contract tests to break. Tensors are zeros on the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

FIA = "npu_fused_infer_attention_score"
FIA_V2 = "npu_fused_infer_attention_score_v2"
BF16 = torch.bfloat16


def zeros(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@cache
def causal() -> Tensor:
    return zeros(2048, 2048, dtype=torch.bool)


def table(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def dense(
    layout: str = "BNSD",
    b: int = 2,
    n: int = 8,
    kn: int = 2,
    q: int = 5,
    s: int = 48,
    d: int = 128,
    dtype: torch.dtype = BF16,
    **more: Any,
) -> dict[str, Any]:
    """FIA v1 without packing or paging."""

    def make(heads: int, seq: int) -> Tensor:
        shape = {"BNSD": (b, heads, seq, d), "BSND": (b, seq, heads, d), "BSH": (b, seq, heads * d)}
        return zeros(*shape[layout.split("_")[0]], dtype=dtype)

    query, key, value = make(n, q), make(kn, s), make(kn, s)
    heads = {"num_heads": n, "num_key_value_heads": kn}
    return {"query": query, "key": key, "value": value, **heads, "input_layout": layout, **more}


def packed(
    ql: list[int],
    kl: list[int],
    n: int = 8,
    kn: int = 2,
    d: int = 128,
    dv: int = 0,
    dtype: torch.dtype = BF16,
    layout: str = "TND",
    **more: Any,
) -> dict[str, Any]:
    """FIA v1 of packed requests; ``ql`` and ``kl`` are lengths per request."""
    ends = [[sum(x[: i + 1]) for i in range(len(x))] for x in (ql, kl)]

    def make(tokens: int, heads: int, dim: int) -> Tensor:
        tensor = zeros(tokens, heads, dim, dtype=dtype)
        return tensor if layout.startswith("TND") else zeros(heads, tokens, dim, dtype=dtype)

    return {
        "query": make(ends[0][-1], n, d),
        "key": make(ends[1][-1], kn, d),
        "value": make(ends[1][-1], kn, dv or d),
        "num_heads": n,
        "num_key_value_heads": kn,
        "input_layout": layout,
        "actual_seq_lengths": ends[0],
        "actual_seq_lengths_kv": ends[1],
        **more,
    }


def paged(
    form: str = "BnNBsD",
    q: int = 1,
    layout: str = "BNSD",
    blocks: int = 6,
    size: int = 128,
    n: int = 8,
    kn: int = 2,
    d: int = 128,
    dtype: torch.dtype = BF16,
    **more: Any,
) -> dict[str, Any]:
    """FIA v1 of two requests on a paged cache."""
    tile = 32 if dtype == torch.int8 else 16
    cache = {
        "BnBsH": (blocks, size, kn * d),
        "BnNBsD": (blocks, kn, size, d),
        "NZ": (blocks, kn, d // tile, size, tile),
    }[form]
    args = dense(layout, n=n, kn=kn, q=q, d=d)
    args |= {"key": zeros(*cache, dtype=dtype), "value": zeros(*cache, dtype=dtype)}
    args |= {"block_table": table([5, 1, 0], [2, 3, 4]), "block_size": size}
    return {**args, "actual_seq_lengths_kv": [300, 129], **more}


def mla(q: int = 1, n: int = 32, layout: str = "BNSD", **more: Any) -> dict[str, Any]:
    """FIA v1 on a paged latent cache (D 512) with a rope part of 64."""
    args = paged("BnNBsD" if layout.startswith("BNSD") else "BnBsH", q, layout, n=n, kn=1, d=512)
    ropes = {
        "query_rope": dense(layout, n=n, q=q, d=64)["query"],
        "key_rope": args["key"].new_empty(_rope(args["key"])),
    }
    return {**args, **ropes, **more}


def _rope(key: Tensor) -> tuple[int, ...]:
    return (*key.shape[:-1], 64)


V2 = {
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "value_antiquant_scale": "dequant_scale_value",
    "softmax_lse_flag": "return_softmax_lse",
}


def v2(args: dict[str, Any]) -> dict[str, Any]:
    """The same call of FIA v2."""
    return {V2.get(name, name): value for name, value in args.items()}


def indexer(b: int = 2, q: int = 3, s: int = 20, n: int = 8, d: int = 128, **more: Any) -> dict[str, Any]:
    dtype = torch.float16
    return {
        "query": zeros(b, q, n, d, dtype=dtype),
        "key": zeros(b, s, 1, d, dtype=dtype),
        "weights": zeros(b, q, n, dtype=dtype),
        "sparse_count": 8,
        **more,
    }


def lengths(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


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


def update(parts: int = 3, rows: int = 7, d: int = 64, **more: Any) -> dict[str, Any]:
    lse = [zeros(rows, dtype=torch.float32) for _ in range(parts)]
    return {"lse": lse, "local_out": [zeros(rows, d) for _ in range(parts)], "update_type": 1, **more}


def ring(**more: Any) -> dict[str, Any]:
    names = ("prev_softmax_max", "prev_softmax_sum", "cur_softmax_max", "cur_softmax_sum")
    statistics = {name: zeros(2, 2, 4, 8, dtype=torch.float32) for name in names}
    return {"prev_attn_out": zeros(4, 2, 32), "cur_attn_out": zeros(4, 2, 32), **statistics, **more}


def scatter_pa(**more: Any) -> dict[str, Any]:
    return {
        "key": zeros(3, 2, 32),
        "value": zeros(3, 2, 64),
        "key_cache": zeros(4, 16, 2, 32),
        "value_cache": zeros(4, 16, 2, 64),
        "slot_mapping": lengths(17, 0, 63),
        "cache_mode": "Norm",
        **more,
    }


def gather_pa(**more: Any) -> dict[str, Any]:
    return {
        "key_cache": zeros(4, 16, 2, 32),
        "value_cache": zeros(4, 16, 2, 64),
        "block_tables": table([0, 1], [2, 3]),
        "seq_lens": lengths(17, 3),
        "key": zeros(20, 2, 32),
        "value": zeros(20, 2, 64),
        **more,
    }


def kv_rmsnorm(**more: Any) -> dict[str, Any]:
    return {
        "kv": zeros(2, 1, 3, 576),
        "gamma": zeros(512),
        "cos": zeros(2, 1, 3, 64),
        "sin": zeros(2, 1, 3, 64),
        "index": torch.arange(6).view(2, 3),
        "k_cache": zeros(2, 1, 20, 64),
        "ckv_cache": zeros(2, 1, 20, 512),
        **more,
    }


def scatter_nd(**more: Any) -> dict[str, Any]:
    return {
        "input": zeros(4, 5, 6),
        "indices": torch.tensor([[0, 1], [3, 4], [2, 2]]),
        "updates": zeros(3, 6),
        **more,
    }


def prolog(**more: Any) -> dict[str, Any]:
    heads, dim, latent, rope, low, hidden, tokens = 8, 128, 512, 64, 96, 256, 5
    return {
        "token_x": zeros(tokens, hidden),
        "weight_dq": zeros(hidden, low),
        "weight_uq_qr": zeros(low, heads * (dim + rope)),
        "weight_uk": zeros(heads, dim, latent),
        "weight_dkv_kr": zeros(hidden, latent + rope),
        "rmsnorm_gamma_cq": zeros(low),
        "rmsnorm_gamma_ckv": zeros(latent),
        "rope_sin": zeros(tokens, rope),
        "rope_cos": zeros(tokens, rope),
        "kv_cache": zeros(4, 16, 1, latent),
        "kr_cache": zeros(4, 16, 1, rope),
        "cache_index": torch.arange(tokens),
        **more,
    }


def fusion(**more: Any) -> dict[str, Any]:
    return {
        "query": zeros(2, 4, 5, 64),
        "key": zeros(2, 2, 9, 64),
        "value": zeros(2, 2, 9, 64),
        "head_num": 4,
        "input_layout": "BNSD",
        **more,
    }


def full_quant(**more: Any) -> dict[str, Any]:
    """FIA v1 on int8 queries, keys and values."""
    scales = ("dequant_scale1", "quant_scale1", "dequant_scale2")
    return dense(dtype=torch.int8) | {name: zeros(1, dtype=torch.float32) for name in scales} | more


def c8(q: int = 1, **more: Any) -> dict[str, Any]:
    """FIA v1 on an int8 NZ cache with one scale per channel."""
    scale = zeros(2, 1, 128)
    args = paged("NZ", q, dtype=torch.int8)
    return args | {"key_antiquant_scale": scale, "value_antiquant_scale": scale} | more
