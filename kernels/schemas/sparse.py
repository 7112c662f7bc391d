"""Sparse attention over selected keys and the indexers that select them, torch_npu 2.13.0."""

from __future__ import annotations

from ._text import schemas

SCHEMAS = schemas(
    """
npu_lightning_indexer(
    Tensor query, Tensor key, Tensor weights, *,
    Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None,
    Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", int sparse_count=2048,
    int sparse_mode=3, int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807,
    bool return_value=False) -> (Tensor, Tensor)

npu_quant_lightning_indexer(
    Tensor query, Tensor key, Tensor weights, Tensor query_dequant_scale, Tensor key_dequant_scale,
    int query_quant_mode, int key_quant_mode, *,
    Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None,
    Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", int sparse_count=2048,
    int sparse_mode=3, int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807,
    int? query_dtype=None, int? key_dtype=None) -> Tensor

npu_sparse_flash_attention(
    Tensor query, Tensor key, Tensor? value, Tensor sparse_indices, float scale_value, *,
    Tensor? block_table=None, Tensor? actual_seq_lengths_query=None,
    Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None,
    int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3,
    int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, int attention_mode=0,
    bool return_softmax_lse=False, Tensor? sinks=None) -> (Tensor, Tensor, Tensor)

npu_kv_quant_sparse_flash_attention(
    Tensor query, Tensor key, Tensor value, Tensor sparse_indices, float scale_value,
    int key_quant_mode, int value_quant_mode, *,
    Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, Tensor? block_table=None,
    Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None,
    int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3,
    int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, int attention_mode=0,
    int quant_scale_repo_mode=1, int tile_size=128, int rope_head_dim=64,
    int? key_dtype=None, int? value_dtype=None) -> Tensor
"""
)
