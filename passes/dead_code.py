"""Removing what nobody reads any more."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.values import argument, aten, drops, is_call


def remove_dead_code(graph: fx.Graph) -> None:
    """Erase calls whose results are unused and that have no effect.

    FX takes operators that may draw random numbers for effects, attention and dropout among them.
    Where they draw nothing they go too: otherwise each replaced attention would still be computed.
    """
    graph.eliminate_dead_code(is_impure_node=has_effect)


def has_effect(node: fx.Node) -> bool:
    """Whether running ``node`` does something besides computing its result."""
    if is_call(node, aten.scaled_dot_product_attention):
        return argument(node, 4, "dropout_p", 0.0) != 0.0
    if is_call(node, aten.dropout, aten.feature_dropout):
        return drops(node)
    return node.is_impure()
