"""The schema tables: what is in them, and what older releases lack."""

from __future__ import annotations

import pytest
import torch

import npu_compile  # noqa: F401  defines torch.ops.npu
from npu_compile.kernels.fakes import FAKES
from npu_compile.kernels.schemas import SCHEMAS
from npu_compile.kernels.schemas.versions import (
    ARGUMENT_SINCE,
    NONE_SINCE,
    OPERATOR_SINCE,
    missing,
    schema_at,
)

OPERATORS = """
    npu_fused_infer_attention_score npu_fused_infer_attention_score.out
    _npu_fused_infer_attention_score_get_max_workspace _npu_fused_infer_attention_score_infer_output
    npu_fused_infer_attention_score_v2 npu_fused_infer_attention_score_v2.out
    _npu_fused_infer_attention_score_v2_get_max_workspace _npu_fused_infer_attention_score_v2_infer_output
    npu_attention_update npu_ring_attention_update npu_lightning_indexer npu_quant_lightning_indexer
    npu_sparse_flash_attention npu_kv_quant_sparse_flash_attention npu_scatter_pa_kv_cache
    npu_scatter_pa_kv_cache_functional npu_gather_pa_kv_cache npu_gather_pa_kv_cache_functional
    npu_kv_rmsnorm_rope_cache npu_interleave_rope npu_rotary_mul npu_rms_norm npu_add_rms_norm
    npu_mla_prolog_v3 npu_mla_prolog_v3_functional npu_transpose_batchmatmul npu_scatter_nd_update
    npu_scatter_nd_update_ npu_fusion_attention
""".split()  # noqa: SIM905


def test_the_operators_are_all_there() -> None:
    assert sorted(SCHEMAS) == sorted(FAKES) == sorted(OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_is_callable(name: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.npu, packet), overload or "default")
    assert str(op._schema) == f"npu::{torch._C.parse_schema(SCHEMAS[name])}"
    for key in ("Meta", "CPU"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", key), key


def test_later_arguments_are_arguments() -> None:
    for table in (ARGUMENT_SINCE, NONE_SINCE):
        for op, arguments in table.items():
            assert arguments.keys() <= {a.name for a in torch._C.parse_schema(SCHEMAS[op]).arguments}
    assert OPERATOR_SINCE.keys() <= SCHEMAS.keys()


@pytest.mark.parametrize(
    "version, op, arguments, expected",
    [
        ("2.13.0", "npu_sparse_flash_attention", ["query", "sinks"], []),
        ("2.14.0", "npu_sparse_flash_attention", ["sinks"], []),
        (
            "2.12.0",
            "npu_sparse_flash_attention",
            ["query", "sinks"],
            ["sinks of npu::npu_sparse_flash_attention needs torch-npu 2.13.0; this is 2.12.0"],
        ),
        ("2.9.0", "npu_scatter_pa_kv_cache", ["key"], []),
        (
            "2.9.0",
            "npu_gather_pa_kv_cache",
            [],
            ["npu::npu_gather_pa_kv_cache needs torch-npu 2.10.0; this is 2.9.0"],
        ),
        ("2.8.0.post2", "npu_fused_infer_attention_score", ["query", "actual_seq_lengths_kv"], []),
    ],
)
def test_missing(version: str, op: str, arguments: list[str], expected: list[str]) -> None:
    assert missing(version, op, arguments) == expected


def test_schemas_of_an_old_release() -> None:
    assert schema_at("npu_ring_attention_update", "2.10.0") is None
    old = schema_at("npu_sparse_flash_attention", "2.12.0")
    new = schema_at("npu_sparse_flash_attention", "2.13.0")
    assert new == str(torch._C.parse_schema(SCHEMAS["npu_sparse_flash_attention"]))
    assert old == new.replace("Tensor? value", "Tensor value").replace(", Tensor? sinks=None", "")
