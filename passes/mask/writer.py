"""Adds nodes to a graph where the values they read are still what the program read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, aten, is_tensor


class Writer:
    """Inserts every node right after the last one it reads.

    A tensor that the program writes to before that place (a cache's token counter) is copied first,
    right after its own definition.
    """

    def __init__(self, graph: fx.Graph, writes: Writes) -> None:
        self.graph = graph
        self._writes = writes
        self._inputs_end = _last_placeholder(graph)

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Insert ``target(*args, **kwargs)``; its fake value is in ``meta["val"]``."""
        read = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, fx.Node)]
        place = self._after(read)
        stale = {n: self._copy(n) for n in dict.fromkeys(read) if is_tensor(n) and self._written(n, place)}
        if stale:
            args, kwargs = fx.node.map_arg((args, kwargs), lambda n: stale.get(n, n))
            place = self._after([*read, *stale.values()])
        with self.graph.inserting_after(place):
            return call(self.graph, target, *args, **kwargs)

    def settled(self, node: fx.Node) -> fx.Node:
        """``node`` for readers further down: a copy of it, if its storage is written to later on."""
        return self._copy(node) if any(write > node for write in self._writes.to(node)) else node

    def _after(self, read: list[fx.Node]) -> fx.Node:
        return max([self._inputs_end, *read])

    def _written(self, node: fx.Node, place: fx.Node) -> bool:
        at_place = place is not node and place in self._writes.to(node)
        return at_place or self._writes.between(Operand(node, node), place) is not None

    def _copy(self, node: fx.Node) -> fx.Node:
        with self.graph.inserting_after(self._after([node])):
            return call(self.graph, aten.clone.default, node)


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    """The node that new nodes must follow at least, so that a graph's inputs stay together."""
    last = next(iter(graph.nodes))
    for node in graph.nodes:
        if node.op != "placeholder":
            break
        last = node
    return last
