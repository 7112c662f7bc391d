"""Fakes of FIA v1 and v2: output in the layout's output form, LSE in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..layouts import LAYOUTS, Layout, lse_shape, output_shape, query_sizes, value_head_dim

QUANTISED_QUERY = (torch.int8, torch.float8_e4m3fn)
"""Query dtypes that say nothing of the output's dtype."""


def _layout(query: Tensor, input_layout: str) -> Layout:
    layout = LAYOUTS.get(input_layout)
    if layout is None:
        raise RuntimeError(f"input_layout {input_layout!r} is not one of {', '.join(LAYOUTS)}")
    if query.dim() != layout.rank:
        raise RuntimeError(f"query has {query.dim()} dims; input_layout {input_layout!r} needs {layout.rank}")
    return layout


def _attention(
    query: Tensor,
    value: Tensor,
    input_layout: str,
    num_heads: int,
    num_key_value_heads: int,
    block_table: Tensor | None,
    lse: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if num_heads <= 0:
        raise RuntimeError(f"num_heads is {num_heads}; it must be positive")
    layout = _layout(query, input_layout)
    paged = block_table is not None
    ranks = (3, 4, 5) if paged else (query.dim(),)
    if value.dim() not in ranks:
        raise RuntimeError(f"value has {value.dim()} dims; expected {' or '.join(map(str, ranks))}")
    sizes = query_sizes(tuple(query.shape), layout, num_heads)
    dim = value_head_dim(tuple(value.shape), layout, num_key_value_heads or num_heads, paged)
    if value.dtype == torch.int32:
        dim = dim * 8  # eight int4 in one element
    if dim == 0 or sizes.head_dim == 0:
        dim = sizes.head_dim
    out = query.new_empty(output_shape(layout, sizes, dim), dtype=dtype)
    return out, query.new_empty(lse_shape(layout, sizes) if lse else [0], dtype=torch.float32)


def _unquantised(query: Tensor, query_rope: Tensor | None) -> torch.dtype:
    if query.dtype not in QUANTISED_QUERY:
        return query.dtype
    return torch.float16 if query_rope is None else query_rope.dtype


def _v1(
    query: Tensor,
    value: Tensor,
    *,
    input_layout: str = "BSH",
    quant_scale2: Tensor | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_lse_flag: bool = False,
    query_rope: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    dtype = torch.int8 if quant_scale2 is not None else _unquantised(query, query_rope)
    heads = (num_heads, num_key_value_heads)
    return _attention(query, value, input_layout, *heads, block_table, softmax_lse_flag, dtype)


# out_dtype is c10::ScalarType's number, the same in every release of torch.
SCALAR_TYPES = {
    1: torch.int8,
    5: torch.float16,
    6: torch.float32,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}


def _v2(
    query: Tensor,
    value: Tensor,
    *,
    input_layout: str = "BSH",
    quant_scale_out: Tensor | None = None,
    block_table: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    return_softmax_lse: bool = False,
    query_rope: Tensor | None = None,
    out_dtype: int | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    if quant_scale_out is not None:
        dtype = torch.int8 if out_dtype is None else SCALAR_TYPES[out_dtype]
    elif query.dtype in QUANTISED_QUERY and out_dtype is not None:
        dtype = SCALAR_TYPES[out_dtype]
    else:
        dtype = _unquantised(query, query_rope)
    heads = (num_query_heads, num_key_value_heads)
    return _attention(query, value, input_layout, *heads, block_table, return_softmax_lse, dtype)


def _v1_call(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return _v1(query, value, **kwargs)


def _v2_call(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return _v2(query, value, **kwargs)


def _out(query: Tensor, key: Tensor, value: Tensor, *, out: list[Tensor], **_: Any) -> tuple[Tensor, Tensor]:
    return out[0], out[1]


def _max_workspace(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    return query.new_empty([0], dtype=torch.uint8)


FAKES: dict[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score": _v1_call,
    "npu_fused_infer_attention_score.out": _out,
    "_npu_fused_infer_attention_score_get_max_workspace": _max_workspace,
    "_npu_fused_infer_attention_score_infer_output": _v1,
    "npu_fused_infer_attention_score_v2": _v2_call,
    "npu_fused_infer_attention_score_v2.out": _out,
    "_npu_fused_infer_attention_score_v2_get_max_workspace": _max_workspace,
    "_npu_fused_infer_attention_score_v2_infer_output": _v2,
}
