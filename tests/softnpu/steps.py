"""Steps of hand-built graphs on the software NPU, in the dtype that FIA takes."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.npu_compile.runtime.decode_graphs import decode, expected_decode, fresh_state, lowered, step_inputs


def to_npu(tensors: list[Tensor]) -> list[Tensor]:
    """bfloat16 copies on the NPU; integers keep their dtype, parameters stay parameters."""
    moved = []
    for tensor in tensors:
        value = tensor.detach().to("npu", torch.bfloat16 if tensor.is_floating_point() else None)
        moved.append(torch.nn.Parameter(value, False) if isinstance(tensor, torch.nn.Parameter) else value)
    return moved


def npu_decode_graph(layers: int) -> torch.fx.GraphModule:
    return lowered(decode(layers), to_npu([*step_inputs(0), *fresh_state(layers)]))


def assert_steps(outputs: list[Tensor], layers: int, first: int = 0) -> None:
    """``outputs`` are those of the steps from ``first`` on, as far as bfloat16 goes."""
    expected = expected_decode(layers, first + len(outputs))[first:]
    for output, want in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output.cpu().double(), want, atol=4e-2, rtol=2e-2)
