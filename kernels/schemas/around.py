"""What stands around attention in a decoder layer: norms, rotary embeddings, MLA's projections and the
merging of partial results. torch_npu 2.13.0."""

from __future__ import annotations

from ._text import schemas

_MLA_PROLOG_V3_WEIGHTS = """
    Tensor token_x, Tensor weight_dq, Tensor weight_uq_qr, Tensor weight_uk, Tensor weight_dkv_kr,
    Tensor rmsnorm_gamma_cq, Tensor rmsnorm_gamma_ckv, Tensor rope_sin, Tensor rope_cos
"""

_MLA_PROLOG_V3_OPTIONS = """
    Tensor? cache_index=None, Tensor? dequant_scale_x=None, Tensor? dequant_scale_w_dq=None,
    Tensor? dequant_scale_w_uq_qr=None, Tensor? dequant_scale_w_dkv_kr=None,
    Tensor? quant_scale_ckv=None, Tensor? quant_scale_ckr=None, Tensor? smooth_scales_cq=None,
    Tensor? actual_seq_len=None, Tensor? k_nope_clip_alpha=None,
    float rmsnorm_epsilon_cq=1e-05, float rmsnorm_epsilon_ckv=1e-05, str cache_mode="PA_BSND",
    bool query_norm_flag=False, int weight_quant_mode=0, int kv_cache_quant_mode=0,
    int query_quant_mode=0, int ckvkr_repo_mode=0, int quant_scale_repo_mode=0, int tile_size=128,
    float qc_qr_scale=1.0, float kc_scale=1.0, int? token_x_dtype=None, int? weight_dq_dtype=None,
    int? weight_uq_qr_dtype=None, int? weight_dkv_kr_dtype=None, int? kv_cache_dtype=None
"""

SCHEMAS = schemas(
    f"""
npu_attention_update(Tensor[] lse, Tensor[] local_out, int update_type) -> (Tensor, Tensor)

npu_ring_attention_update(
    Tensor prev_attn_out, Tensor prev_softmax_max, Tensor prev_softmax_sum,
    Tensor cur_attn_out, Tensor cur_softmax_max, Tensor cur_softmax_sum, *,
    Tensor? actual_seq_qlen=None, str input_layout="SBH",
    str input_softmax_layout="") -> (Tensor, Tensor, Tensor)

npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor

npu_rotary_mul(
    Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> Tensor

npu_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)

npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor)

npu_mla_prolog_v3({_MLA_PROLOG_V3_WEIGHTS}, Tensor(a!) kv_cache, Tensor(b!) kr_cache, *,
    {_MLA_PROLOG_V3_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)

npu_mla_prolog_v3_functional({_MLA_PROLOG_V3_WEIGHTS}, Tensor kv_cache, Tensor kr_cache, *,
    {_MLA_PROLOG_V3_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)

npu_transpose_batchmatmul(
    Tensor input, Tensor weight, *, Tensor? bias=None, Tensor? scale=None, int[]? perm_x1=None,
    int[]? perm_x2=None, int[]? perm_y=None, int? batch_split_factor=1) -> Tensor

npu_fusion_attention(
    Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None,
    Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1.0, float keep_prob=1.0,
    int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None,
    int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0,
    bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None,
    Tensor? dropout_mask=None, int seed=0,
    int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)
"""
)
