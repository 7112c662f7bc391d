"""CPU kernel of npu_fused_infer_attention_score (FIA v1)."""

from __future__ import annotations

import torch
from torch import Tensor

from .attend import attend
from .fia import Attend, Call, Output, run
from .inputs import Inputs
from .int8_attention import Int8Attend
from .lengths import Lengths, host_ints
from .masks import mask_of
from .quant import Factors
from .requests import Sequences
from .tokens import Joined, Prefixed, Tokens
from .views import as_bnsd, layout_of


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Lengths | None = None,
    actual_seq_lengths_kv: Lengths | None = None,
    dequant_scale1: Tensor | None = None,
    quant_scale1: Tensor | None = None,
    dequant_scale2: Tensor | None = None,
    quant_scale2: Tensor | None = None,
    quant_offset2: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    key_antiquant_scale: Tensor | None = None,
    key_antiquant_offset: Tensor | None = None,
    value_antiquant_scale: Tensor | None = None,
    value_antiquant_offset: Tensor | None = None,
    block_table: Tensor | None = None,
    query_padding_size: Tensor | None = None,
    kv_padding_size: Tensor | None = None,
    key_shared_prefix: Tensor | None = None,
    value_shared_prefix: Tensor | None = None,
    actual_shared_prefix_len: Lengths | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    key_rope_antiquant_scale: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention; arguments as in ``torch_npu.npu_fused_infer_attention_score``.

    Returns the output in the layout's output order, and the log-sum-exp: float32 (B, N, S, 1), (T, N, 1) if
    packed, (0,) if ``softmax_lse_flag`` is false. Raises TypeError or ValueError naming the argument.
    """
    layout = layout_of(input_layout)
    inputs = Inputs(layout, num_heads, num_key_value_heads or num_heads, block_table, block_size)
    q = inputs.query(query, query_rope)
    one_token = q.shape[2] == 1 and not layout.packed
    q_lengths = Sequences(
        "actual_seq_lengths",
        None if one_token else actual_seq_lengths,
        layout.packed,
        None if query_padding_size is None else int(query_padding_size),
    )
    kv_lengths = Sequences(
        "actual_seq_lengths_kv",
        actual_seq_lengths_kv,
        layout.packed and block_table is None,
        None if kv_padding_size is None else int(kv_padding_size),
    )
    keys, values = inputs.tokens(key), inputs.tokens(value)
    if key_shared_prefix is not None and value_shared_prefix is not None:
        if query_rope is not None:
            raise ValueError("key_shared_prefix: it has no rope part, so it can't go with query_rope")
        keys = _prefixed(keys, key_shared_prefix, actual_shared_prefix_len, inputs)
        values = _prefixed(values, value_shared_prefix, actual_shared_prefix_len, inputs)
    if query.dtype != torch.int8:
        merged = Factors.given(antiquant_mode, antiquant_scale, antiquant_offset)
        for_keys = Factors.given(key_antiquant_mode, key_antiquant_scale, key_antiquant_offset)
        for_values = Factors.given(value_antiquant_mode, value_antiquant_scale, value_antiquant_offset)
        keys = inputs.real(keys, for_keys or _half(merged, 0), key)
        values = inputs.real(values, for_values or _half(merged, 1), value)
    if key_rope is not None:
        keys = Joined(keys, inputs.tokens(key_rope))
    padded = query_padding_size is not None or kv_padding_size is not None
    mode = 1 if padded and sparse_mode == 0 and atten_mask is not None else sparse_mode  # tokens are ignored
    call = Call(
        layout,
        q,
        keys,
        values,
        inputs.value_dim(value),
        scale,
        mask_of(atten_mask, mode, pre_tokens, next_tokens, one_token, query_rope is not None),
        Output(_dtype(query, quant_scale2), quant_scale2, quant_offset2),
        softmax_lse_flag,
        pse_shift,
        attend=_attend(query, dequant_scale1, quant_scale1, dequant_scale2),
    )
    return run(call, inputs.requests(q, key, q_lengths, kv_lengths))


def _prefixed(own: Tokens, prefix: Tensor, length: Lengths | None, inputs: Inputs) -> Tokens:
    view = as_bnsd(prefix, inputs.layout.query, inputs.kv_heads)
    if length is None:
        return Prefixed(view, own)
    (tokens,) = host_ints("actual_shared_prefix_len", length)
    return Prefixed(view[:, :, :tokens], own)


def _half(merged: Factors | None, index: int) -> Factors | None:
    """``antiquant_scale`` and ``_offset`` hold the keys' factors and then the values'."""
    if merged is None:
        return None
    return Factors(merged.mode, merged.scale[index], None if merged.offset is None else merged.offset[index])


def _dtype(query: Tensor, quant_scale2: Tensor | None) -> torch.dtype:
    if quant_scale2 is not None:
        return torch.int8
    return torch.float16 if query.dtype == torch.int8 else query.dtype


def _attend(
    query: Tensor, scale1: Tensor | None, probability: Tensor | None, scale2: Tensor | None
) -> Attend:
    if query.dtype != torch.int8:
        return attend
    if scale1 is None or probability is None or scale2 is None:
        raise ValueError("query: int8 needs dequant_scale1, quant_scale1 and dequant_scale2")
    return Int8Attend(scale1, probability, scale2)
