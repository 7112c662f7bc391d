"""What older releases of torch_npu lack, from 2.8.0.post2 on. 2.14.0 declares the same as 2.13.0."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from packaging.version import Version

from . import SCHEMAS

OLDEST = "2.8.0.post2"

OPERATOR_SINCE: dict[str, str] = {
    "npu_gather_pa_kv_cache": "2.10.0",
    "npu_gather_pa_kv_cache_functional": "2.10.0",
    "npu_ring_attention_update": "2.11.0",
}
"""Operators that the oldest release doesn't have, and the first that does."""

_V2 = {"quant_scale_p": "2.10.0", "out_dtype": "2.10.0"}
_PROLOG = dict.fromkeys(
    ("token_x_dtype", "weight_dq_dtype", "weight_uq_qr_dtype", "weight_dkv_kr_dtype", "kv_cache_dtype"),
    "2.11.0",
)

ARGUMENT_SINCE: dict[str, dict[str, str]] = {
    "npu_fused_infer_attention_score_v2": _V2,
    "npu_fused_infer_attention_score_v2.out": _V2,
    "_npu_fused_infer_attention_score_v2_get_max_workspace": _V2,
    "_npu_fused_infer_attention_score_v2_infer_output": dict.fromkeys(
        ("query_dtype", "value_dtype", "out_dtype"), "2.10.0"
    ),
    "npu_quant_lightning_indexer": {"query_dtype": "2.10.0", "key_dtype": "2.10.0"},
    "npu_sparse_flash_attention": {"sinks": "2.13.0"},
    "npu_kv_quant_sparse_flash_attention": {"key_dtype": "2.10.0", "value_dtype": "2.10.0"},
    "npu_scatter_pa_kv_cache": {"cache_mode": "2.10.0"},
    "npu_scatter_pa_kv_cache_functional": {"cache_mode": "2.10.0"},
    "npu_rotary_mul": {"rotate": "2.10.0"},
    "npu_mla_prolog_v3": _PROLOG,
    "npu_mla_prolog_v3_functional": _PROLOG,
    "npu_fusion_attention": dict.fromkeys(("dropout_mask", "seed", "offset"), "2.10.0"),
}
"""Arguments that the oldest release doesn't have, and the first that does."""

NONE_SINCE: dict[str, dict[str, str]] = {"npu_sparse_flash_attention": {"value": "2.13.0"}}
"""Arguments that must be given before, and may be None since."""


def missing(version: str, op: str, arguments: Iterable[str] = ()) -> list[str]:
    """What torch_npu ``version`` lacks of ``npu::op`` with ``arguments``, as sentences; [] if nothing."""
    since = OPERATOR_SINCE.get(op, OLDEST)
    if Version(version) < Version(since):
        return [f"npu::{op} needs torch-npu {since}; this is {version}"]
    later = ARGUMENT_SINCE.get(op, {})
    return [
        f"{name} of npu::{op} needs torch-npu {later[name]}; this is {version}"
        for name in arguments
        if name in later and Version(version) < Version(later[name])
    ]


def schema_at(op: str, version: str) -> str | None:
    """The schema of ``npu::op`` in torch_npu ``version``, as torch prints it; None where it has none."""
    if missing(version, op):
        return None
    name, _, rest = str(torch._C.parse_schema(SCHEMAS[op])).partition("(")
    listed, _, returns = rest.rpartition(") -> ")
    kept = []
    for text in listed.split(", "):
        kind, _, argument = text.partition("=")[0].rpartition(" ")
        if argument and missing(version, op, [argument]):
            continue
        required = Version(version) < Version(NONE_SINCE.get(op, {}).get(argument, OLDEST))
        kept.append(text.replace(f"{kind} ", f"{kind.removesuffix('?')} ", 1) if required else text)
    return f"{name}({', '.join(kept)}) -> {returns}"
