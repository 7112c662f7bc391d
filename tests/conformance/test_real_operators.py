"""Our schemas, fakes, CPU kernels and contract, judged by the torch_npu that matches torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from npu_compile.kernels.contract import check
from npu_compile.kernels.fakes import FAKES
from npu_compile.kernels.schemas import SCHEMAS
from tests.kernels.contract_refusals import REFUSALS
from tests.kernels.test_contract_legal import LEGAL

from .compare import output_differences, schema_differences, without_data
from .kinds import doubtful, legal

pytestmark = pytest.mark.torch_npu

ROOT = Path(__file__).parents[2]

META_SAYS = {rule for rule, case in REFUSALS.items() if case.target == "cpu"} & {
    v.rule_id
    for case in REFUSALS.values()
    for v in check(case.op, case.args, case.target)
    if "meta" in v.source
}
"""Rules whose source is a meta function."""

WITHOUT_META = {
    "npu_fused_infer_attention_score.out",
    "npu_fused_infer_attention_score_v2.out",
    "_npu_fused_infer_attention_score_get_max_workspace",
    "_npu_fused_infer_attention_score_v2_get_max_workspace",
    "_npu_fused_infer_attention_score_infer_output",
    "_npu_fused_infer_attention_score_v2_infer_output",
    "npu_gather_pa_kv_cache",
}
"""Operators without a meta function in torch_npu: a fake has nothing to be compared with.

infer_output is compared otherwise.
"""

CANN_ONLY = {"sfa.lse.paged": "the meta function returns the wrong shape instead"}


def real_schemas(real: dict[str, Any]) -> dict[str, str]:
    return {name: state[0] for name, state in real["before"].items()}


def test_schemas_are_equal(real: dict[str, Any]) -> None:
    assert schema_differences(SCHEMAS, real_schemas(real)) == []


def test_torch_npus_own_definitions_stay(real: dict[str, Any]) -> None:
    assert {n: s[0] for n, s in real["after"].items()} == {n: s[0] for n, s in real["before"].items()}
    added_meta = {n for n, s in real["after"].items() if s[1] and not real["before"][n][1]}
    assert added_meta == WITHOUT_META
    assert not any(real["before"][name][2] for name in SCHEMAS)
    assert all(real["after"][name][2] for name in SCHEMAS)


def test_operators_run_on_the_cpu_beside_torch_npu(real: dict[str, Any]) -> None:
    assert real["equal_on_cpu"]


def test_the_real_meta_functions_take_every_legal_call(real: dict[str, Any]) -> None:
    assert {name: said for name, said in real["outputs"].items() if isinstance(said, str)} == {}
    assert len(real["outputs"]) == len(list(legal())) > 300


def test_fakes_have_the_real_shapes_and_dtypes(real: dict[str, Any]) -> None:
    def fake(op: str) -> Any:
        packet, _, overload = op.partition(".")
        return getattr(getattr(torch.ops.npu, packet), overload or "default")

    assert output_differences(without_data(legal()), fake, real["outputs"]) == []
    assert output_differences(without_data(legal()), FAKES.__getitem__, real["outputs"]) == []


def test_cpu_kernels_have_the_real_shapes_and_dtypes(real: dict[str, Any]) -> None:
    kinds = [kind for kind in legal() if not check(kind.op, kind.args, "cpu")]
    assert len(kinds) > 250
    assert output_differences(kinds, lambda op: getattr(torch.ops.npu, op), real["outputs"]) == []


def test_the_workspace_operators_agree_with_the_real_outputs(real: dict[str, Any]) -> None:
    """infer_output has no meta function in torch_npu: it has to say what the operator's own says."""
    for kind in legal():
        if kind.op not in ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"):
            continue
        name = f"_{kind.op}_infer_output"
        takes = {a.name for a in torch._C.parse_schema(SCHEMAS[name]).arguments}
        given = {n: v for n, v in kind.args.items() if n in takes}
        assert (
            output_differences([kind._replace(op=name, args=given)], FAKES.__getitem__, real["outputs"]) == []
        )


def test_every_operator_the_project_calls_is_among_the_calls() -> None:
    sources = [p for folder in ("npu_compile", "passes", "kernels") for p in (ROOT / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"\bnpu_[a-z0-9_]+\b", path.read_text())}
    called = named & {name.partition(".")[0] for name in SCHEMAS}
    assert called <= {kind.op for kind in legal()}


def test_the_contract_accepts_the_legal_calls() -> None:
    for op, args, targets in LEGAL.values():
        for target in targets:
            assert check(op, args, target) == []


def test_the_contract_refuses_what_the_meta_functions_refuse(real: dict[str, Any]) -> None:
    kinds = list(doubtful())
    assert set(real["refused"]) == {kind.name for kind in kinds}
    accepted = [
        f"{kind.name}: {real['refused'][kind.name]}"
        for kind in kinds
        if real["refused"][kind.name] and not check(kind.op, kind.args, "cpu")
    ]
    assert accepted == []
    assert sum(said is not None for said in real["refused"].values()) > 300


def test_rules_that_quote_the_meta_functions_are_theirs(real: dict[str, Any]) -> None:
    assert META_SAYS
    for rule in META_SAYS - CANN_ONLY.keys():
        assert real["refused"][f"refusal {rule}"], rule
