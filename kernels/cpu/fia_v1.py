"""CPU kernel of npu_fused_infer_attention_score (FIA v1)."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.kernels.cpu import fia
from npu_compile.kernels.cpu.keys import Dense
from npu_compile.kernels.cpu.layouts import as_bnsd, layout_of
from npu_compile.kernels.cpu.lengths import Lengths
from npu_compile.kernels.cpu.masks import mask_of
from npu_compile.kernels.cpu.requests import Sequences, plan


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
    """Attention over dense keys and values; see ``torch_npu.npu_fused_infer_attention_score``.

    Returns the output in the layout's output order and the log-sum-exp, float32 (B, N, S, 1), (T, N, 1) for packed
    layouts, shape (0,) if ``softmax_lse_flag`` is false.
    """
    for name, value_ in list(locals().items()):
        if name in UNREAD and value_ is not None:
            raise NotImplementedError(f"{name}: the CPU kernel has no reference for it yet")
    layout = layout_of(input_layout)
    kv_heads = num_key_value_heads or num_heads
    q = as_bnsd(query, layout.input, num_heads)
    k = as_bnsd(key, layout.input, kv_heads)
    v = as_bnsd(value, layout.input, kv_heads)
    batch, heads, q_len, _ = q.shape
    if heads != num_heads or k.shape[1] != kv_heads or num_heads % kv_heads:
        raise ValueError(
            f"num_heads {num_heads}, num_key_value_heads {kv_heads}: the tensors have {heads}, {k.shape[1]}"
        )
    mask = mask_of(
        atten_mask, sparse_mode, pre_tokens, next_tokens, batch, None if layout.packed else q_len, False
    )
    lengths = None if q_len == 1 and not layout.packed else actual_seq_lengths
    queries = Sequences("actual_seq_lengths", lengths, layout.packed).ranges(batch, q_len)
    keys = Sequences("actual_seq_lengths_kv", actual_seq_lengths_kv, layout.packed).ranges(batch, k.shape[2])
    requests = plan(queries, keys, layout.packed, layout.packed, paged=False)
    call = fia.Call(layout, q, Dense(k, v), v.shape[-1], scale, mask, pse_shift)
    out, lse = fia.run(call, requests)
    return out, lse if softmax_lse_flag else torch.empty(0, dtype=torch.float32, device=query.device)


UNREAD = frozenset(
    "dequant_scale1 quant_scale1 dequant_scale2 quant_scale2 quant_offset2 antiquant_scale antiquant_offset "
    "key_antiquant_scale key_antiquant_offset value_antiquant_scale value_antiquant_offset block_table "
    "query_padding_size kv_padding_size key_shared_prefix value_shared_prefix actual_shared_prefix_len query_rope "
    "key_rope key_rope_antiquant_scale".split()
)
