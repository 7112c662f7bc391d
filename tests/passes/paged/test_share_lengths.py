"""Equal copies of lengths become one; copies on both sides of a write stay two."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.passes.paged.share_lengths import share_lengths
from tests.passes.graphs import aten_graph

ensure_graph_ops()
host = torch.ops.ascend_fia.host_lengths


def test_layers_share_one_copy() -> None:
    def layers(lengths: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return host(lengths), host(other), host(lengths), host(lengths) + host(other)

    inputs = torch.tensor([3, 17]), torch.tensor([54])
    module = aten_graph(layers, *inputs)
    wanted = module(*inputs)
    assert share_lengths(module.graph) == 3
    module.recompile()
    assert [out.tolist() for out in module(*inputs)] == [out.tolist() for out in wanted]
    assert sum(node.target is host.default for node in module.graph.nodes) == 2


def test_a_write_in_between() -> None:
    def steps(lengths: Tensor) -> tuple[Tensor, ...]:
        before = host(lengths)
        lengths.add_(1)
        return before, host(lengths), host(lengths)

    module = aten_graph(steps, torch.tensor([3, 17]))
    assert share_lengths(module.graph) == 1
    module.recompile()
    assert [out.tolist() for out in module(torch.tensor([3, 17]))] == [[3, 17], [4, 18], [4, 18]]
