"""Fakes of the MLA prolog: everything between the hidden states and attention in one operator."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

DYNAMIC_QUANT = (1, 2, 4, 5)
"""``weight_quant_mode`` values whose normalised query has a float32 scale per token."""


def _prolog(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    *,
    query_norm_flag: bool = False,
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Query (…, N, Hckv), its rope part (…, N, Dr), its scale, the normalised latent query and its scale.

    ``…`` is token_x's (B, S) or (T,). Outputs that aren't asked for are empty. Floats are bfloat16, the only
    ones that a device takes; wider tokens, which the CPU kernels compute with, stay what they are.
    """
    if token_x.dim() not in (2, 3) or rope_sin.dim() != token_x.dim() or weight_uk.dim() != 3:
        raise RuntimeError(
            "token_x needs 2 or 3 dims, rope_sin as many and weight_uk 3; "
            f"they have {token_x.dim()}, {rope_sin.dim()} and {weight_uk.dim()}"
        )
    tokens = token_x.shape[:-1]
    count = tokens[0] * tokens[1] if len(tokens) == 2 else tokens[0]
    heads, latent = weight_uk.shape[0], weight_uk.shape[2]
    quantised_query = weight_quant_mode in (2, 3, 4, 5) and kv_cache_quant_mode == 1
    wide = token_x.is_floating_point() and token_x.dtype.itemsize > 1
    dtype = token_x.dtype if wide else torch.bfloat16

    query = token_x.new_empty([*tokens, heads, latent], dtype=token_x.dtype if quantised_query else dtype)
    query_rope = token_x.new_empty([*tokens, heads, rope_sin.shape[-1]], dtype=dtype)
    query_scale = token_x.new_empty([count, heads, 1] if quantised_query else [0], dtype=torch.float32)
    norm = weight_uq_qr.new_empty([*tokens, weight_dq.shape[1]] if query_norm_flag else [0])
    scaled_norm = query_norm_flag and weight_quant_mode in DYNAMIC_QUANT
    norm_scale = token_x.new_empty([count, 1] if scaled_norm else [0], dtype=torch.float32)
    return query, query_rope, query_scale, norm, norm_scale


def _functional(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    given = signature(_prolog).bind(*args, **kwargs).arguments
    caches = (torch.empty_like(given[name]) for name in ("kv_cache", "kr_cache"))
    return *_prolog(*args, **kwargs), *caches


FAKES: dict[str, Callable[..., Any]] = {
    "npu_mla_prolog_v3": _prolog,
    "npu_mla_prolog_v3_functional": _functional,
}
