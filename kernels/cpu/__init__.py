"""CPU reference kernels of the torch_npu operators this project emits.

Each function has the exact signature of its operator. They compute what the operator's documentation says,
on any float dtype and any head size; what the operator refuses, they refuse.
"""

_HERE = "npu_compile.kernels.cpu"

CPU_KERNELS: dict[str, str] = {
    "npu_fused_infer_attention_score": f"{_HERE}.fia_v1:npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score.out": f"{_HERE}.fia_out:npu_fused_infer_attention_score_out",
    "_npu_fused_infer_attention_score_infer_output": f"{_HERE}.fia_out:v1_infer_output",
    "_npu_fused_infer_attention_score_get_max_workspace": f"{_HERE}.fia_out:v1_max_workspace",
    "npu_fused_infer_attention_score_v2": f"{_HERE}.fia_v2:npu_fused_infer_attention_score_v2",
    "npu_fused_infer_attention_score_v2.out": f"{_HERE}.fia_out:npu_fused_infer_attention_score_v2_out",
    "_npu_fused_infer_attention_score_v2_infer_output": f"{_HERE}.fia_out:v2_infer_output",
    "_npu_fused_infer_attention_score_v2_get_max_workspace": f"{_HERE}.fia_out:v2_max_workspace",
}
"""Operator, with the overload if it isn't the default one, to ``module:function``."""
