"""FIA v1 and v2 on random legal calls against attention's definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.contract import check
from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_lse, assert_rounded
from tests.kernels.oracle.fia_call import Builder, FiaCall
from tests.kernels.oracle.fia_scenario import Scenario, scenarios
from tests.kernels.oracle.layouts import from_lse, from_output
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
OPERATORS = {1: "npu_fused_infer_attention_score", 2: "npu_fused_infer_attention_score_v2"}


Run = Callable[[str, dict[str, Any]], tuple[Tensor, Tensor]]


def functionally(op: str, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = getattr(torch.ops.npu, op).default(**call)
    return result


def into_given_tensors(op: str, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """As NPUGraph records it: allocate what the operator asks for, then compute into that."""
    packet = getattr(torch.ops.npu, f"_{op}_infer_output").default
    wanted = {argument.name for argument in packet._schema.arguments}
    out = packet(**{name: value for name, value in call.items() if name in wanted})
    workspace = getattr(torch.ops.npu, f"_{op}_get_max_workspace").default(**call)
    for tensor in out:
        tensor.fill_(77)
    getattr(torch.ops.npu, op).out(**call, workspace=workspace, out=out)
    return out


def plainly(call: FiaCall, scale: float, dtype: torch.dtype) -> list[Tensor]:
    """The same attention in torch operations of ``dtype``."""
    parts = []
    for r in call.requests:
        q, k, v = (t.to(dtype) for t in (r.q, r.k, r.v))
        group = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
        scores = (q @ k.mT) * scale
        if r.bias is not None:
            scores = scores + r.bias
        scores = scores.masked_fill(~r.keep, float("-inf"))
        if call.sink is not None:
            sink = call.sink[:, None, None].expand(*scores.shape[:2], 1).to(dtype)
            weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1).nan_to_num(0.0)
        parts.append(weights @ v)
    return parts


def check_scenario(s: Scenario, run: Run) -> None:
    call = Builder(s).build()
    named = dict(zip(("query", "key", "value"), call.args, strict=True)) | call.options
    assert not check(OPERATORS[s.version], named, "cpu"), "the generator made an illegal call"
    before = {name: value.clone() for name, value in named.items() if isinstance(value, Tensor)}
    out, lse = run(OPERATORS[s.version], named)
    want, want_lse = call.expected(s.scale)
    got = from_output(out, s.output_order, s.heads, list(s.q_lens), call.starts)
    plain = plainly(call, s.scale, s.dtype)
    for mine, theirs, low in zip(got, want, plain, strict=True):
        if call.out_scale is None:
            assert mine.dtype == s.dtype
            assert_close(mine, theirs, low)
        elif s.dtype in (torch.float32, torch.float64):
            offset = 0.0 if call.out_offset is None else call.out_offset
            assert_rounded(mine, theirs * call.out_scale + offset)
    assert lse.dtype == torch.float32
    if s.lse:
        tolerance = {torch.bfloat16: 0.05, torch.float16: 0.01}.get(s.dtype, 2e-5)
        for mine, theirs in zip(from_lse(lse, s.packed, list(s.q_lens), call.starts), want_lse, strict=True):
            assert_lse(mine, theirs, tolerance)
    else:
        assert tuple(lse.shape) == (0,)
    assert out.is_contiguous() and lse.is_contiguous()
    for name, value in before.items():
        assert torch.equal(value.nan_to_num(), named[name].nan_to_num()), f"{name} was written to"


@pytest.mark.parametrize("run", [functionally, into_given_tensors])
@pytest.mark.parametrize("version", [1, 2])
@EXAMPLES
def test_fia_is_attention(version: int, run: Run, examples: int) -> None:
    for_all(scenarios(version), examples, lambda scenario: check_scenario(scenario, run))
