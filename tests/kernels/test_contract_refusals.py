"""What the contract refuses: every rule, on the targets it is for, with a message that helps."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import npu_compile  # noqa: F401  defines torch.ops.npu
from npu_compile.kernels.contract import SPECS, ContractError, check, require
from npu_compile.kernels.targets import Target

from .contract_calls import FIA, FIA_V2, dense, packed, v2, zeros
from .contract_calls_around import scatter_pa
from .contract_refusals import REFUSALS

RULES = {rule.id: rule for spec in SPECS.values() for rule in spec.rules()}


def test_every_rule_has_a_refusal() -> None:
    assert set(REFUSALS) == set(RULES)


@pytest.mark.parametrize("rule_id", REFUSALS)
def test_refuses(rule_id: str) -> None:
    case = REFUSALS[rule_id]
    found = {v.rule_id: v for v in check(case.op, case.args, case.target)}
    assert rule_id in found
    violation = found[rule_id]
    assert violation.argument == case.argument
    rule = RULES[rule_id]
    assert (
        violation.rule == rule.text and violation.source == rule.source and violation.instead == rule.instead
    )
    with pytest.raises(ContractError) as error:
        require(case.op, case.args, case.target)
    message = str(error.value)
    for part in (case.op, case.target, case.argument, str(violation.value), rule.text, rule_id):
        assert part in message


@pytest.mark.parametrize("rule_id", [r for r in REFUSALS if RULES[r].targets != frozenset(Target)])
def test_refuses_only_where_the_rule_holds(rule_id: str) -> None:
    case = REFUSALS[rule_id]
    where = {t for t in Target if rule_id in {v.rule_id for v in check(case.op, case.args, t)}}
    assert where <= RULES[rule_id].targets
    assert Target.CPU not in where


@pytest.mark.parametrize("rule_id", [r for r in REFUSALS if r not in ("fia.lengths.integers.kv",)])
def test_one_mistake_gives_one_refusal_on_the_cpu(rule_id: str) -> None:
    """So that a message points at the mistake, and not at what follows from it."""
    case = REFUSALS[rule_id]
    found = check(case.op, case.args, "cpu")
    assert len({v.rule_id for v in found}) <= 3


def test_sources_and_texts_are_for_people() -> None:
    for rule in RULES.values():
        assert rule.source and rule.text and not rule.text.endswith(".")
        assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", rule.id)


def test_violations_cannot_be_changed() -> None:
    (violation,) = check(FIA, dense() | {"num_heads": 0}, "cpu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        violation.argument = "key"  # type: ignore[misc]


def test_v2_violations_use_the_names_of_v2() -> None:
    args = v2(packed([9, 16], [9, 16])) | {"actual_seq_qlen": [9, 24]}
    (violation,) = check(FIA_V2, args, "cpu")
    assert violation.argument == "actual_seq_qlen"
    assert violation.value == "[9, 24], with T 25"


def test_unknown_arguments_and_operators() -> None:
    assert [v.rule_id for v in check(FIA, dense(head_num=3), "cpu")] == ["arguments.unknown"]
    assert [v.rule_id for v in check(FIA, {"query": zeros(1)}, "cpu")] == ["arguments.required"] * 2
    assert [v.rule_id for v in check(FIA, dense(atten_mask=3), "cpu")] == ["arguments.tensor"]
    with pytest.raises(KeyError):
        check("npu_softplus", {}, "cpu")


@pytest.mark.parametrize("op", ["npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"])
def test_a_refused_call_raises_from_the_operator(op: str) -> None:
    args = dense() if op == FIA else v2(dense())
    bad = args | {"input_layout": "BSND"}
    with pytest.raises(ContractError, match=r"query is .*fia\.query\.heads"):
        getattr(torch.ops.npu, op)(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"slot_mapping": torch.tensor([17, 0, 64], dtype=torch.int32)},
        {"slot_mapping": torch.tensor([17, 17, 3], dtype=torch.int32)},
        {"value": zeros(3, 2, 64, dtype=torch.float16)},
        {"key": zeros(3, 3, 32), "value": zeros(3, 3, 64)},
    ],
)
def test_a_refused_write_writes_nothing(bad: dict[str, torch.Tensor]) -> None:
    args = scatter_pa(key=zeros(3, 2, 32) + 1, value=zeros(3, 2, 64) + 1) | bad
    with pytest.raises(ContractError):
        torch.ops.npu.npu_scatter_pa_kv_cache(**args)
    assert not args["key_cache"].any() and not args["value_cache"].any()
