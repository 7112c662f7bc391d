"""Fakes of the cache writes and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _nothing(*_: Any, **__: Any) -> None:
    """Caches and outputs are written in place."""


def _new_caches(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(key_cache), torch.empty_like(value_cache)


def _gathered(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    return key.new_empty(key.shape), value.new_empty(value.shape)


def _kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    v: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both caches, then the roped key part and the normalised latent part of ``kv`` (B, N, S, D)."""
    if kv.dim() != 4 or cos.dim() != 4 or gamma.dim() != 1:
        raise RuntimeError(
            f"kv, cos and gamma need 4, 4 and 1 dims; they have {kv.dim()}, {cos.dim()} and {gamma.dim()}"
        )
    rope_dim, latent_dim = (cos.shape[3], gamma.shape[0]) if v is None else (kv.shape[3], v.shape[3])
    return (
        torch.empty_like(k_cache),
        torch.empty_like(ckv_cache),
        kv.new_empty([*kv.shape[:3], rope_dim]),
        kv.new_empty([*kv.shape[:3], latent_dim]),
    )


def _updated(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return torch.empty_like(input)


def _updated_in_place(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return input


FAKES: dict[str, Callable[..., Any]] = {
    "npu_scatter_pa_kv_cache": _nothing,
    "npu_scatter_pa_kv_cache_functional": _new_caches,
    "npu_gather_pa_kv_cache": _nothing,
    "npu_gather_pa_kv_cache_functional": _gathered,
    "npu_kv_rmsnorm_rope_cache": _kv_rmsnorm_rope_cache,
    "npu_scatter_nd_update": _updated,
    "npu_scatter_nd_update_": _updated_in_place,
}
