"""Fakes of the lightning indexers and of sparse flash attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _require(layout: str, query: Tensor) -> None:
    ranks = {"BSND": 4, "TND": 3}
    if layout not in ranks:
        raise RuntimeError(f"layout_query {layout!r} is not one of BSND, TND")
    if query.dim() != ranks[layout]:
        raise RuntimeError(f"query has {query.dim()} dims; layout_query {layout!r} needs {ranks[layout]}")


def _indices_shape(
    query: Tensor, key: Tensor, layout_query: str, layout_key: str, sparse_count: int
) -> list[Any]:
    """(B, S, N_kv, count) or (T, N_kv, count)."""
    _require(layout_query, query)
    if sparse_count <= 0:
        raise RuntimeError(f"sparse_count is {sparse_count}; it must be positive")
    key_heads = key.shape[1 if layout_key == "TND" else 2]
    return [*query.shape[: query.dim() - 2], key_heads, sparse_count]


def _lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    return_value: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    shape = _indices_shape(query, key, layout_query, layout_key, sparse_count)
    values = query.new_empty(shape if return_value else [0])
    return query.new_empty(shape, dtype=torch.int32), values


def _quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
    *,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    **_: Any,
) -> Tensor:
    shape = _indices_shape(query, key, layout_query, layout_key, sparse_count)
    return query.new_empty(shape, dtype=torch.int32)


def _sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    layout_query: str = "BSND",
    return_softmax_lse: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    _require(layout_query, query)
    shape: list[Any] = [0]
    if return_softmax_lse and layout_query == "TND":
        # torch_npu 2.13 reads N_kv from dim 1 of key, whatever layout_kv says: with a paged key
        # that is the block size, and the shape is wrong. The same here, so that nobody relies on it.
        shape = [key.shape[1], query.shape[0], query.shape[1] // key.shape[1]]
    elif return_softmax_lse:
        shape = [query.shape[0], key.shape[2], query.shape[1], query.shape[2] // key.shape[2]]
    maximum = query.new_empty(shape, dtype=torch.float32)
    return query.new_empty(query.shape), maximum, query.new_empty(shape, dtype=torch.float32)


def _kv_quant_sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    layout_query: str = "BSND",
    rope_head_dim: int = 64,
    **_: Any,
) -> Tensor:
    _require(layout_query, query)
    return query.new_empty([*query.shape[:-1], query.shape[-1] - rope_head_dim])


FAKES: dict[str, Callable[..., Any]] = {
    "npu_lightning_indexer": _lightning_indexer,
    "npu_quant_lightning_indexer": _quant_lightning_indexer,
    "npu_sparse_flash_attention": _sparse_flash_attention,
    "npu_kv_quant_sparse_flash_attention": _kv_quant_sparse_flash_attention,
}
