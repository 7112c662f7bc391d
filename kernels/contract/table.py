"""The table: which rules hold for which operator.

Rules are named ``family.what``; each says on which targets it holds. ``docs/ops.md`` lists them all.
"""

from __future__ import annotations

from functools import partial

from ..targets import Target
from . import (
    around,
    cache,
    fia_form,
    fia_lengths,
    fia_limits,
    fia_mask,
    fia_options,
    fia_paged,
    fia_quant,
    fia_rope,
    fia_sizes,
    indexer,
    merge,
    sparse_attention,
    sparse_call,
    sparse_values,
)
from .call import Call, Values
from .fia_call import FiaCall
from .rule import ASCEND310P, rule
from .spec import Rules, Spec

_FIA_STAGES = (
    fia_form.RULES,
    (*fia_sizes.RULES, *fia_rope.FORM),
    (
        *fia_mask.RULES,
        *fia_paged.RULES,
        *fia_rope.RULES,
        *fia_options.RULES,
        *fia_quant.RULES,
        *fia_limits.RULES,
    ),
)
_FIA_LENGTHS = {
    1: frozenset({"actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len"}),
    2: frozenset({"actual_seq_qlen", "actual_seq_kvlen"}),
}


def _fia(op: str, version: int) -> Spec:
    return Spec(
        op,
        partial(FiaCall, version),
        _FIA_STAGES,
        fia_lengths.FiaValues,
        fia_lengths.RULES,
        _FIA_LENGTHS[version],
    )


def _sparse(op: str, side: str, rules: Rules, value_rules: Rules = ()) -> Spec:
    return Spec(
        op,
        partial(sparse_call.SparseCall, side=side),
        ((unavailable, *sparse_call.FORM), (*sparse_call.RULES, *rules)),
        sparse_values.SparseValues,
        (*sparse_values.RULES, *value_rules),
    )


@rule("target.unavailable", "target", "the operator isn't for 310P", targets=ASCEND310P)
def unavailable(call: object) -> str:
    return Target.ASCEND310P.value


_NOT_310P = (unavailable,)


def _plain(op: str, *stages: Rules, values: Rules = (), lengths: frozenset[str] = frozenset()) -> Spec:
    return Spec(op, Call, stages, Values, values, lengths)


_SCATTER_PA = (cache.SCATTER_FORM, cache.SCATTER_RULES)
_GATHER_PA = (cache.GATHER_FORM, cache.GATHER_RULES)
_SCATTER_ND = (cache.ND_FORM, cache.ND_RULES)
_PROLOG = (around.PROLOG_FORM, around.PROLOG_RULES)
_FUSION_LENGTHS = frozenset({"actual_seq_qlen", "actual_seq_kvlen", "prefix"})

SPECS: dict[str, Spec] = {
    spec.op: spec
    for spec in (
        _fia("npu_fused_infer_attention_score", 1),
        _fia("npu_fused_infer_attention_score.out", 1),
        _fia("npu_fused_infer_attention_score_v2", 2),
        _fia("npu_fused_infer_attention_score_v2.out", 2),
        _sparse("npu_lightning_indexer", "key", indexer.RULES),
        _sparse("npu_quant_lightning_indexer", "key", indexer.QUANT_RULES),
        _sparse("npu_sparse_flash_attention", "kv", sparse_attention.RULES, sparse_attention.VALUE_RULES),
        _sparse(
            "npu_kv_quant_sparse_flash_attention",
            "kv",
            sparse_attention.QUANT_RULES,
            sparse_attention.VALUE_RULES,
        ),
        _plain("npu_attention_update", _NOT_310P, merge.UPDATE_FORM, merge.UPDATE_RULES),
        _plain("npu_ring_attention_update", _NOT_310P, merge.RING_RULES),
        _plain("npu_scatter_pa_kv_cache", _NOT_310P, *_SCATTER_PA, values=cache.SCATTER_VALUES),
        _plain("npu_scatter_pa_kv_cache_functional", _NOT_310P, *_SCATTER_PA, values=cache.SCATTER_VALUES),
        _plain("npu_gather_pa_kv_cache", _NOT_310P, *_GATHER_PA),
        _plain("npu_gather_pa_kv_cache_functional", _NOT_310P, *_GATHER_PA),
        _plain("npu_kv_rmsnorm_rope_cache", _NOT_310P, cache.KV_FORM, cache.KV_RULES),
        _plain("npu_scatter_nd_update", *_SCATTER_ND, values=cache.ND_VALUES),
        _plain("npu_scatter_nd_update_", *_SCATTER_ND, values=cache.ND_VALUES),
        _plain("npu_rms_norm", around.NORM_RULES),
        _plain("npu_add_rms_norm", around.ADD_NORM_RULES),
        _plain("npu_interleave_rope", _NOT_310P, around.INTERLEAVE_RULES),
        _plain("npu_rotary_mul", around.ROTARY_RULES),
        _plain("npu_transpose_batchmatmul", _NOT_310P, around.BMM_FORM, around.BMM_RULES),
        _plain("npu_mla_prolog_v3", _NOT_310P, *_PROLOG),
        _plain("npu_mla_prolog_v3_functional", _NOT_310P, *_PROLOG),
        _plain(
            "npu_fusion_attention",
            _NOT_310P,
            around.FUSION_FORM,
            around.FUSION_RULES,
            lengths=_FUSION_LENGTHS,
        ),
    )
}
