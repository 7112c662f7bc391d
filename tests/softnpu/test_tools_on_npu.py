"""The doctor and explain where the device is an NPU."""

import torch

from npu_compile import explain
from tests.npu_compile.runtime.capturing import prompt_of, tiny_model


def test_explain() -> None:
    model = tiny_model("llama").to("npu", torch.bfloat16)
    report = explain(model, input_ids=prompt_of(2).npu())
    assert len(report.lowered) == 2
    assert not report.left
    assert {graph.target for graph in report.graphs} == {"ascend910b"}
