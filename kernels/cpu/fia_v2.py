"""CPU kernel of npu_fused_infer_attention_score_v2 (FIA v2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fakes.fia import QUANTISED_QUERY, SCALAR_TYPES
from .fia import Call, Output, run
from .inputs import Inputs
from .lengths import Lengths
from .masks import mask_of
from .quant import Factors
from .requests import Sequences
from .tokens import Joined
from .views import layout_of


def npu_fused_infer_attention_score_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_qlen: Lengths | None = None,
    actual_seq_kvlen: Lengths | None = None,
    block_table: Tensor | None = None,
    dequant_scale_query: Tensor | None = None,
    dequant_scale_key: Tensor | None = None,
    dequant_offset_key: Tensor | None = None,
    dequant_scale_value: Tensor | None = None,
    dequant_offset_value: Tensor | None = None,
    dequant_scale_key_rope: Tensor | None = None,
    quant_scale_out: Tensor | None = None,
    quant_offset_out: Tensor | None = None,
    quant_scale_p: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    num_query_heads: int = 1,
    num_key_value_heads: int = 0,
    softmax_scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    sparse_mode: int = 0,
    block_size: int = 0,
    query_quant_mode: int = 0,
    key_quant_mode: int = 0,
    value_quant_mode: int = 0,
    inner_precise: int = 0,
    return_softmax_lse: bool = False,
    query_dtype: int | None = None,
    key_dtype: int | None = None,
    value_dtype: int | None = None,
    query_rope_dtype: int | None = None,
    key_rope_dtype: int | None = None,
    key_shared_prefix_dtype: int | None = None,
    value_shared_prefix_dtype: int | None = None,
    dequant_scale_query_dtype: int | None = None,
    dequant_scale_key_dtype: int | None = None,
    dequant_scale_value_dtype: int | None = None,
    dequant_scale_key_rope_dtype: int | None = None,
    out_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention; arguments as in ``torch_npu.npu_fused_infer_attention_score_v2``.

    Returns the output in the layout's output order, and the log-sum-exp: float32 (B, N, S, 1), (T, N, 1) if
    packed, (0,) if ``return_softmax_lse`` is false. Raises TypeError or ValueError naming the argument.
    """
    layout = layout_of(input_layout)
    inputs = Inputs(layout, num_query_heads, num_key_value_heads or num_query_heads, block_table, block_size)
    q = inputs.query(query, query_rope, dequant_scale_query)
    one_token = q.shape[2] == 1 and not layout.packed
    q_lengths = Sequences("actual_seq_qlen", None if one_token else actual_seq_qlen, layout.packed)
    kv_lengths = Sequences("actual_seq_kvlen", actual_seq_kvlen, layout.packed and block_table is None)
    for_keys = Factors.given(key_quant_mode, dequant_scale_key, dequant_offset_key)
    for_values = Factors.given(value_quant_mode, dequant_scale_value, dequant_offset_value)
    keys, values = inputs.tokens(key), inputs.real(inputs.tokens(value), for_values, value)
    if key_rope is None:
        keys = inputs.real(keys, for_keys, key)
    elif dequant_scale_query is None:
        keys = Joined(inputs.real(keys, for_keys, key), inputs.tokens(key_rope))
    else:  # Fully quantised: the scales multiply the scores, those of the rope part included.
        keys = inputs.real(Joined(keys, inputs.tokens(key_rope)), for_keys, key)
    call = Call(
        layout,
        q,
        keys,
        values,
        inputs.value_dim(value),
        softmax_scale,
        mask_of(atten_mask, sparse_mode, pre_tokens, next_tokens, one_token, query_rope is not None),
        Output(_dtype(query, query_rope, quant_scale_out, out_dtype), quant_scale_out, quant_offset_out),
        return_softmax_lse,
        pse_shift,
        learnable_sink,
    )
    return run(call, inputs.requests(q, key, q_lengths, kv_lengths))


def _dtype(query: Tensor, rope: Tensor | None, scale: Tensor | None, out_dtype: int | None) -> torch.dtype:
    if scale is None and query.dtype not in QUANTISED_QUERY:
        return query.dtype
    if out_dtype is not None:
        return SCALAR_TYPES[out_dtype]
    if scale is not None:
        return torch.int8
    return torch.float16 if rope is None else rope.dtype
