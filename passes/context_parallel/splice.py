"""Putting a traced function into a graph in place of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.emit_node import fake_mode_of
from npu_compile.passes.origin import copy_origin


def splice(
    graph: fx.Graph, before: fx.Node, function: Callable[..., torch.Tensor], inputs: Sequence[fx.Node]
) -> list[fx.Node]:
    """Trace ``function`` on the fake values of ``inputs`` and insert its operators ahead of ``before``.

    Returns the new nodes; the last is its result. They carry ``before``'s stack trace and module stack, so
    that reports and errors still point into the user's program.
    """
    mode = fake_mode_of(graph)
    assert mode is not None, "a graph with an attention call has fake values"
    with mode:
        traced = make_fx(function, pre_dispatch=True)(*(node.meta["val"] for node in inputs))
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    copies: dict[fx.Node, fx.Node] = dict(zip(placeholders, inputs, strict=True))
    traced.graph.eliminate_dead_code()
    with graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "call_function":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copy_origin(before, copies[node])
            elif node.op == "output":
                return [copies[one] for one in traced.graph.nodes if one.op == "call_function"]
            else:
                assert node.op == "placeholder", f"a rewrite must not hold constants: {node.format_node()}"
    raise AssertionError("a traced graph ends with an output")
