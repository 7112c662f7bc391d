"""Calls added to a graph once, however many layers ask for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from npu_compile.passes.emit_node import call, size_node
from npu_compile.passes.values import Writes, is_tensor


class SharedCalls:
    """Emission of pure calls from the first of a graph's layers to the last, at its insertion point.

    The same call of the same nodes is the same node, unless the program writes to one of them: each
    layer then computes its own, from what it reads.
    """

    def __init__(self, graph: fx.Graph, writes: Writes) -> None:
        self._graph = graph
        self._writes = writes
        self._made: dict[object, fx.Node] = {}

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        args, kwargs = map_aggregate(
            (args, kwargs), lambda a: size_node(self._graph, a) if isinstance(a, torch.SymInt) else a
        )
        read = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, fx.Node)]
        if any(is_tensor(node) and self._writes.to(node) for node in read):
            return call(self._graph, target, *args, **kwargs)
        key = (target, repr(args), repr(sorted(kwargs.items())))
        if key not in self._made:
            self._made[key] = call(self._graph, target, *args, **kwargs)
        return self._made[key]
