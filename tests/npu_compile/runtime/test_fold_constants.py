"""Constants of a length program are computed once, whatever their nodes are called."""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.runtime.length_program import _fold_constants

aten = torch.ops.aten


def test_a_constant_may_be_named_as_a_method_of_modules() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    positions = graph.create_node("call_function", aten.arange.default, (3,), {}, name="to")
    graph.output(graph.call_function(aten.add.Tensor, (x, positions)))
    module = fx.GraphModule(torch.nn.Module(), graph)
    _fold_constants(module)
    assert [n.op for n in module.graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]
    assert module(torch.tensor([5, 5, 5])).tolist() == [5, 6, 7]
