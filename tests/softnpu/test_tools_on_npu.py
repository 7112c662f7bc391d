"""The doctor and explain where the device is an NPU."""

import os
from pathlib import Path

import pytest
import torch

from npu_compile import explain
from npu_compile.doctor import diagnose, gather
from tests.npu_compile.runtime.capturing import prompt_of, tiny_model

SITE = Path(__file__).parent / "site"


def test_explain() -> None:
    model = tiny_model("llama").to("npu", torch.bfloat16)
    with torch.no_grad():
        report = explain(model, input_ids=prompt_of(2).npu(), quiet=True)
    assert len(report.lowered) == 2
    assert not report.left
    assert {graph.target for graph in report.graphs} == {"ascend910b"}


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor looks from processes of its own, which have the software NPU too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), os.environ["PYTHONPATH"]]))
    diagnosis = diagnose(gather())
    assert diagnosis.wrong == ()
    assert diagnosis.runs["npu"].startswith("fused operators on 1 x Ascend910B1; checked: attention lowered")
