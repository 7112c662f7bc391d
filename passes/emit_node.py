"""Adding operator calls to a graph, each with its fake value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_aggregate, map_arg


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The fake mode that the graph's values were traced under; None for a graph without tensors."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def call(graph: fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Insert ``target(*args, **kwargs)`` at the graph's insertion point and propagate its fake value.

    Arguments may be nodes, plain values and nested lists of both; symbolic sizes become nodes
    that measure them. The caller sets the insertion point (``with graph.inserting_after(node):``).
    """
    args, kwargs = map_aggregate(
        (args, kwargs), lambda a: size_node(graph, a) if isinstance(a, torch.SymInt) else a
    )
    node = graph.call_function(target, args, kwargs)
    values = map_arg((args, kwargs), lambda n: n.meta["val"])
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, FakeTensor)]
    mode = tensors[0].fake_mode if tensors else fake_mode_of(graph)
    if mode is None:
        node.meta["val"] = target(*values[0], **values[1])
    else:
        with mode:
            node.meta["val"] = target(*values[0], **values[1])
    return node


def size_node(graph: fx.Graph, size: torch.SymInt) -> fx.Node:
    """A node whose value is ``size``: one that is there, or the size of the first tensor that has it.

    Raises:
        LookupError: no value in the graph has this size.
    """
    expression = size.node.expr
    for node in graph.nodes:
        found = node.meta.get("val")
        if isinstance(found, torch.SymInt) and found.node.expr == expression:
            return node
        if not isinstance(found, torch.Tensor):
            continue
        for dim, length in enumerate(found.shape):
            if isinstance(length, torch.SymInt) and length.node.expr == expression:
                measured = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                measured.meta["val"] = length
                return measured
    raise LookupError(f"no tensor of the graph has the size {size}")
