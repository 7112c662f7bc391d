"""Adding operator calls to a graph, each with its fake value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The fake mode that the graph's values were traced under; None for a graph without tensors."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def call(graph: fx.Graph, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
    """Insert ``target(*args, **kwargs)`` at the graph's insertion point and propagate its fake value.

    Arguments may be nodes, plain values and nested lists of both. The caller sets the
    insertion point (``with graph.inserting_after(node):``).
    """
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


def last_of(nodes: list[fx.Node]) -> fx.Node:
    """The one of ``nodes`` that comes last in the graph."""
    return max(nodes)
