"""Which memory a graph's nodes read and write: bases, views and writers.

A *base* is a node whose value may own memory: a placeholder, an attribute, or the result of an operator
that allocates. Any other value may be a view of some bases. The answer errs on the side of "may be".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from ..passes.values import given_arguments

Bases = frozenset[fx.Node]


class Memory:
    """The bases of every node of a graph, and the nodes that write to each base, in program order."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.bases: dict[fx.Node, Bases] = {}
        self.writers: dict[fx.Node, list[fx.Node]] = {}
        self._owners: dict[int, fx.Node] = {}
        for node in graph.nodes:
            self.bases[node] = self._find_bases(node)
            for base in self.written(node):
                self.writers.setdefault(base, []).append(node)

    def written(self, node: fx.Node) -> Bases:
        """The bases that ``node`` may write to."""
        return _union(self.bases[written] for written in _written_arguments(node))

    def writers_before(self, node: fx.Node) -> list[fx.Node]:
        """The nodes before ``node`` that may have written to what ``node`` reads."""
        read = _union(self.bases[argument] for argument in node.all_input_nodes)
        return [
            writer
            for base in read
            for writer in self.writers.get(base, ())
            if self.position[writer] < self.position[node]
        ]

    def _find_bases(self, node: fx.Node) -> Bases:
        views = _union(self.bases[argument] for argument in _aliased_arguments(node))
        storage = _storage(node.meta.get("val"))
        if storage is not None:
            # Composite operators such as dropout may return their argument without saying so.
            owner = self._owners.setdefault(storage, node)
            if owner is not node:
                views |= self.bases[owner]
        return views or frozenset((node,))


def _aliased_arguments(node: fx.Node) -> list[fx.Node]:
    if node.op != "call_function":
        return []
    if not isinstance(node.target, OpOverload):  # getitem of a list of views, arithmetic on sizes
        return list(node.all_input_nodes)
    if all(result.alias_info is None for result in node.target._schema.returns):
        return []
    return _arguments_where(node, lambda argument: argument.alias_info is not None)


def _written_arguments(node: fx.Node) -> list[fx.Node]:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return []
    return _arguments_where(
        node, lambda argument: argument.alias_info is not None and argument.alias_info.is_write
    )


def _arguments_where(node: fx.Node, wanted: Any) -> list[fx.Node]:
    """The nodes given for the schema arguments of ``node`` that ``wanted`` accepts."""
    found: list[fx.Node] = []
    for argument, given in given_arguments(node):
        if wanted(argument):
            fx.node.map_arg(given, found.append)
    return found


def _storage(value: object) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return value.untyped_storage()._cdata


def _union(sets: Any) -> Bases:
    return frozenset().union(*sets)
