"""Operators with the schemas of FlashAttention's families, which have no kernels for the CPU.

Only their fake kernels are here: a call that isn't translated can't run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

FA2_WINDOW = "int window_size_left, int window_size_right, float softcap, Tensor? alibi_slopes"
FA2_VARLEN = (
    "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, "
    "int max_seqlen_k, float dropout_p, float softmax_scale, bool causal, int window_size_left=-1, "
    "int window_size_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, bool return_softmax=False, "
    "Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
FA2_DENSE = (
    f"(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, bool causal, {FA2_WINDOW}, "
    "bool return_softmax) -> (Tensor, Tensor, Tensor, Tensor)"
)
FA3 = (
    "(Tensor q, Tensor k, Tensor v, Tensor? k_new=None, Tensor? v_new=None, Tensor? qv=None, "
    "Tensor? out_=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, float? softmax_scale=None, bool causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0.0, bool rotary_interleaved=True, "
    "Tensor? scheduler_metadata=None, int num_splits=1, bool? pack_gqa=None, int sm_margin=0{sinks}) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
HUB_VARLEN = (
    "(Tensor(a!) q, Tensor k, Tensor v, Tensor? out_, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "Tensor? seqused_k_, Tensor? leftpad_k_, Tensor? block_table_, Tensor? alibi_slopes_, int max_seqlen_q, "
    "int max_seqlen_k, float p_dropout, float softmax_scale, bool zero_tensors, bool is_causal, "
    "int window_size_left, int window_size_right, float softcap, bool return_softmax, Generator? gen_) "
    "-> Tensor[]"
)
HUB_KVCACHE = (
    "(Tensor(a!) q, Tensor(b!) kcache, Tensor(c!) vcache, Tensor? k_, Tensor? v_, Tensor? seqlens_k_, "
    "Tensor? rotary_cos_, Tensor? rotary_sin_, Tensor? cache_batch_idx_, Tensor? leftpad_k_, "
    "Tensor? block_table_, Tensor? alibi_slopes_, Tensor? out_, float softmax_scale, bool is_causal, "
    "int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved, int num_splits) "
    "-> (Tensor, Tensor)"
)
OPERATORS = {
    "flash_attn": {
        "_flash_attn_forward": FA2_DENSE,
        "_flash_attn_varlen_forward": FA2_VARLEN,
        "_flash_attn_sparse": "(Tensor q, Tensor k, Tensor v) -> Tensor",
        "_flash_attn_backward": "(Tensor q, Tensor k, Tensor v) -> Tensor",
    },
    "flash_attn_3": {"_flash_attn_forward": FA3.format(sinks="")},
    "_flash_attn2_0123abc": {"varlen_fwd": HUB_VARLEN, "fwd_kvcache": HUB_KVCACHE},
    "_vllm_flash_attn3_0123abc": {
        "fwd": FA3.format(sinks=", Tensor? s_aux=None").replace("causal", "is_causal")
    },
}

_libraries: list[Library] = []


def define() -> None:
    """Define the operators; does nothing the second time."""
    if _libraries:
        return
    for namespace, operators in OPERATORS.items():
        library = Library(namespace, "FRAGMENT")
        _libraries.append(library)
        for name, schema in operators.items():
            library.define(name + schema)
            returns_one = schema.endswith("-> Tensor")
            torch.library.register_fake(
                f"{namespace}::{name}", _one if returns_one else _results(schema), lib=library
            )


def _one(q: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(q)


def _results(schema: str) -> Any:
    count = 2 if schema.endswith("(Tensor, Tensor)") else 4

    def fake(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        others = [q.new_empty(q.shape[:-1]) for _ in range(count - 1)]
        return [out, *others] if schema.endswith("Tensor[]") else (out, *others)

    return fake
