"""Writing and reading K/V caches, torch_npu 2.13.0."""

from __future__ import annotations

from ._text import schemas

SCHEMAS = schemas(
    """
npu_scatter_pa_kv_cache(
    Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, *,
    Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None,
    str? cache_mode="PA_NZ") -> ()

npu_scatter_pa_kv_cache_functional(
    Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor slot_mapping, *,
    Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None,
    str? cache_mode="PA_NZ") -> (Tensor, Tensor)

npu_gather_pa_kv_cache(
    Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens,
    Tensor(a!) key, Tensor(b!) value, *,
    Tensor? seq_offset=None, bool is_seq_lens_cumsum=False) -> ()

npu_gather_pa_kv_cache_functional(
    Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens,
    Tensor key, Tensor value, *,
    Tensor? seq_offset=None, bool is_seq_lens_cumsum=False) -> (Tensor, Tensor)

npu_kv_rmsnorm_rope_cache(
    Tensor kv, Tensor gamma, Tensor cos, Tensor sin, Tensor index, Tensor k_cache, Tensor ckv_cache, *,
    Tensor? k_rope_scale=None, Tensor? c_kv_scale=None, Tensor? k_rope_offset=None,
    Tensor? c_kv_offset=None, Tensor? v=None, float epsilon=1e-05, str cache_mode="Norm",
    bool is_output_kv=False) -> (Tensor, Tensor, Tensor, Tensor)

npu_scatter_nd_update(Tensor input, Tensor indices, Tensor updates) -> Tensor

npu_scatter_nd_update_(Tensor(a!) input, Tensor indices, Tensor updates) -> Tensor(a!)
"""
)
