"""Legal calls, as dicts of arguments, for the contract tests to break. Tensors are zeros on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Refusal:
    """A call that breaks a rule, and the argument that the refusal names."""

    op: str
    args: dict[str, Any]
    argument: str
    target: str = "cpu"
    """Where the rule holds; most hold everywhere."""


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


def lengths(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def full_quant(**more: Any) -> dict[str, Any]:
    """FIA v1 on int8 queries, keys and values."""
    scales = ("dequant_scale1", "quant_scale1", "dequant_scale2")
    return dense(dtype=torch.int8) | {name: zeros(1, dtype=torch.float32) for name in scales} | more


def c8(q: int = 1, **more: Any) -> dict[str, Any]:
    """FIA v1 on an int8 NZ cache with one scale per channel."""
    scale = zeros(2, 1, 128)
    args = paged("NZ", q, dtype=torch.int8)
    return args | {"key_antiquant_scale": scale, "value_antiquant_scale": scale} | more
