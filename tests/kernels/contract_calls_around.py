"""Legal calls of what stands around attention, for the contract tests to break."""

from __future__ import annotations

from typing import Any

import torch

from .contract_calls import lengths, table, zeros


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
