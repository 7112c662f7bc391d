"""Removing what nobody reads any more."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.values import argument, aten, drops, is_call, is_tensor, mutations, storage


def remove_dead_code(graph: fx.Graph) -> None:
    """Erase calls whose results are unused and that have no effect.

    FX takes operators that may draw random numbers for effects, attention and dropout among them.
    Where they draw nothing they go too: otherwise each replaced attention would still be computed.
    """
    graph.eliminate_dead_code(is_impure_node=has_effect)
    while unread := _unread_writes(graph):
        for write in unread:
            graph.erase_node(write)
        graph.eliminate_dead_code(is_impure_node=has_effect)


def _unread_writes(graph: fx.Graph) -> list[fx.Node]:
    """Writes to tensors that this graph makes and that nobody reads after it."""
    written: dict[fx.Node, set[int]] = {}
    for node, place in mutations(graph):
        if not node.users:
            written.setdefault(node, set()).add(place)
    if not written:
        return []
    made: set[int] = set()
    readers: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        if is_tensor(node):
            readers.setdefault(storage(node), set()).update(node.users)
            if _makes(node):
                made.add(storage(node))
    return [
        write
        for write, places in written.items()
        if places <= made and not any(user > write for at in places for user in readers[at])
    ]


def _makes(node: fx.Node) -> bool:
    """Whether the tensor ``node`` is new.

    Views of a node that was replaced, as an attention output is, still name its storage; nobody in the
    graph makes that, so that writes through them stay.
    """
    returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    return bool(returns) and all(one.alias_info is None for one in returns)


def has_effect(node: fx.Node) -> bool:
    """Whether running ``node`` does something besides computing its result."""
    if is_call(node, aten.scaled_dot_product_attention):
        return argument(node, 4, "dropout_p", 0.0) != 0.0
    if is_call(node, aten.dropout, aten.feature_dropout):
        return drops(node)
    return node.is_impure()
