"""Operators that read nothing of a tensor but its sizes or dtype, written without that tensor.

``probabilities.type_as(scores)`` needs no scores, and a graph that says so lets them go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.passes.emit_node import call, size_node
from npu_compile.passes.values import aten, is_call, is_tensor, node_input, shape, value


def drop_metadata_reads(graph: fx.Graph) -> None:
    """Rewrite ``graph`` in place; what is read is taken from the first tensor that has it."""
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            replacement = _without(node)
        if replacement is None or replacement is node:
            continue
        for key in ("nn_module_stack", "stack_trace", "seq_nr"):
            if key in node.meta:
                replacement.meta.setdefault(key, node.meta[key])
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)


def _without(node: fx.Node) -> fx.Node | None:
    """A node of the same value, or None where nothing is to be done."""
    if is_call(node, aten.sym_size.int) and isinstance(node.meta["val"], torch.SymInt):
        measured = size_node(node.graph, node.meta["val"])
        return measured if measured < node else None
    for targets, rewrite in _RULES:
        if is_call(node, *targets) and _computed(node, targets):
            return rewrite(node)
    return None


def _computed(node: fx.Node, targets: Any) -> bool:
    """Whether the tensor that is only measured is a result of the graph, which could go."""
    measured: Any = node.args[0] if targets is _FILLS else node.args[1]
    return is_tensor(measured) and measured.op == "call_function"


def _viewed(node: fx.Node) -> fx.Node:
    return call(node.graph, aten.reshape.default, node_input(node), list(shape(node)))


def _expanded(node: fx.Node) -> fx.Node:
    return call(node.graph, aten.expand.default, node_input(node), list(shape(node)))


def _cast(node: fx.Node) -> fx.Node | None:
    source = node_input(node)
    if value(source).device != value(node).device:
        return None
    return call(node.graph, aten.to.dtype, source, value(node).dtype)


def _filled(node: fx.Node) -> fx.Node | None:
    made = value(node)
    if not made.is_contiguous() or made.layout is not torch.strided:
        return None
    fill: Any = node.args[1] if is_call(node, aten.full_like) else int(is_call(node, aten.ones_like))
    sizes = list(shape(node))
    return call(node.graph, aten.full.default, sizes, fill, dtype=made.dtype, device=made.device)


_FILLS = (aten.zeros_like.default, aten.ones_like.default, aten.full_like.default)
_RULES: tuple[tuple[tuple[Any, ...], Callable[[fx.Node], fx.Node | None]], ...] = (
    ((aten.reshape_as.default, aten.view_as.default), _viewed),
    ((aten.expand_as.default,), _expanded),
    ((aten.type_as.default,), _cast),
    (_FILLS, _filled),
)
