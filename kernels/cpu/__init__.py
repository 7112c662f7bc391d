"""CPU reference kernels of the torch_npu operators this project emits.

Each function has the exact signature of its operator. They compute what the operator's documentation says, on any
float dtype and any head size; what the operator refuses, they refuse.
"""

CPU_KERNELS: dict[str, str] = {
    "npu_fused_infer_attention_score": "npu_compile.kernels.cpu.fia_v1:npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2": "npu_compile.kernels.cpu.fia_v2:npu_fused_infer_attention_score_v2",
}
"""Operator, with the overload if it isn't the default one, to ``module:function``."""
