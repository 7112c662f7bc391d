"""CPU kernel of npu_fused_infer_attention_score_v2 (FIA v2)."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.kernels.cpu import fia
from npu_compile.kernels.cpu.keys import Dense
from npu_compile.kernels.cpu.layouts import as_bnsd, layout_of
from npu_compile.kernels.cpu.lengths import Lengths
from npu_compile.kernels.cpu.masks import mask_of
from npu_compile.kernels.cpu.requests import Sequences, plan


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
    """Attention over dense keys and values; see ``torch_npu.npu_fused_infer_attention_score_v2``.

    Returns the output in the layout's output order and the log-sum-exp, float32 (B, N, S, 1), (T, N, 1) for packed
    layouts, shape (0,) if ``return_softmax_lse`` is false.
    """
    for name, value_ in list(locals().items()):
        if name in UNREAD and value_ is not None:
            raise NotImplementedError(f"{name}: the CPU kernel has no reference for it yet")
    layout = layout_of(input_layout)
    kv_heads = num_key_value_heads or num_query_heads
    q = as_bnsd(query, layout.input, num_query_heads)
    k = as_bnsd(key, layout.input, kv_heads)
    v = as_bnsd(value, layout.input, kv_heads)
    batch, heads, q_len, _ = q.shape
    if heads != num_query_heads or k.shape[1] != kv_heads or num_query_heads % kv_heads:
        raise ValueError(
            f"num_query_heads {num_query_heads}, num_key_value_heads {kv_heads}: the tensors have {heads}, {k.shape[1]}"
        )
    mask = mask_of(
        atten_mask, sparse_mode, pre_tokens, next_tokens, batch, None if layout.packed else q_len, False
    )
    lengths = None if q_len == 1 and not layout.packed else actual_seq_qlen
    queries = Sequences("actual_seq_qlen", lengths, layout.packed).ranges(batch, q_len)
    keys = Sequences("actual_seq_kvlen", actual_seq_kvlen, layout.packed).ranges(batch, k.shape[2])
    requests = plan(queries, keys, layout.packed, layout.packed, paged=False)
    call = fia.Call(layout, q, Dense(k, v), v.shape[-1], softmax_scale, mask, pse_shift)
    out, lse = fia.run(call, requests)
    return out, lse if return_softmax_lse else torch.empty(0, dtype=torch.float32, device=query.device)


UNREAD = frozenset(
    "query_rope key_rope block_table dequant_scale_query dequant_scale_key dequant_offset_key dequant_scale_value "
    "dequant_offset_value dequant_scale_key_rope quant_scale_out quant_offset_out quant_scale_p learnable_sink".split()
)
