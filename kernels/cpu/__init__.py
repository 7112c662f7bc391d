"""CPU reference kernels of the torch_npu operators this project emits.

Each function has the exact signature of its operator. They compute what the operator's documentation says,
on any float dtype and any head size; what the operator refuses, they refuse.
"""

_HERE = "npu_compile.kernels.cpu"

_MODULES = {
    "fia_v1": ("npu_fused_infer_attention_score",),
    "fia_v2": ("npu_fused_infer_attention_score_v2",),
    "merge": ("npu_attention_update", "npu_ring_attention_update"),
    "norms": ("npu_rms_norm", "npu_add_rms_norm"),
    "rope": ("npu_rotary_mul", "npu_interleave_rope"),
    "transpose_bmm": ("npu_transpose_batchmatmul",),
    "kv_cache": (
        "npu_scatter_pa_kv_cache",
        "npu_scatter_pa_kv_cache_functional",
        "npu_gather_pa_kv_cache",
        "npu_gather_pa_kv_cache_functional",
    ),
    "kv_rmsnorm_rope_cache": ("npu_kv_rmsnorm_rope_cache",),
    "fusion_attention": ("npu_fusion_attention",),
    "lightning_indexer": ("npu_lightning_indexer", "npu_quant_lightning_indexer"),
    "mla_prolog": ("npu_mla_prolog_v3", "npu_mla_prolog_v3_functional"),
    "sparse_attention": ("npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention"),
    "scatter_nd": ("npu_scatter_nd_update", "npu_scatter_nd_update_"),
}
"""Module to the operators in it, each a function of the operator's name."""

CPU_KERNELS: dict[str, str] = {
    **{name: f"{_HERE}.{module}:{name}" for module, names in _MODULES.items() for name in names},
    "npu_fused_infer_attention_score.out": f"{_HERE}.fia_out:npu_fused_infer_attention_score_out",
    "_npu_fused_infer_attention_score_infer_output": f"{_HERE}.fia_out:v1_infer_output",
    "_npu_fused_infer_attention_score_get_max_workspace": f"{_HERE}.fia_out:v1_max_workspace",
    "npu_fused_infer_attention_score_v2.out": f"{_HERE}.fia_out:npu_fused_infer_attention_score_v2_out",
    "_npu_fused_infer_attention_score_v2_infer_output": f"{_HERE}.fia_out:v2_infer_output",
    "_npu_fused_infer_attention_score_v2_get_max_workspace": f"{_HERE}.fia_out:v2_max_workspace",
}
"""Operator, with the overload if it isn't the default one, to ``module:function``."""
