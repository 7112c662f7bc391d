"""Scores minus their row's maximum: another way to write the same softmax."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from npu_compile.passes.values import argument, aten, is_call, is_tensor, only_user, same_value_input, shape


def row_maximum(scores: fx.Node, subtracted: Any, reader: fx.Node) -> tuple[fx.Node, ...] | None:
    """What reads ``scores`` to make ``subtracted``, if that is each row's maximum and only for ``reader``.

    softmax(x - c) is softmax(x) for any c that a row has in common. Where a whole row is minus infinity
    both are NaN.
    """
    node = subtracted
    while is_tensor(node) and only_user(node) is reader:
        if is_call(node, aten.amax.default):
            return _taken_over_rows(node, scores)
        if is_call(node, operator.getitem):
            both = node.args[0]
            if not is_call(both, aten.max.dim) or node.args[1] != 0:
                return None
            alone = [user for user in both.users if user.users] == [node]
            return _taken_over_rows(both, scores) if alone else None
        reader, node = node, same_value_input(node)
    return None


def _taken_over_rows(maximum: fx.Node, scores: fx.Node) -> tuple[fx.Node, ...] | None:
    """What ``maximum`` reads ``scores`` through, where it is taken over the last dimension and keeps it."""
    dims, last = argument(maximum, 1, "dim"), len(shape(scores)) - 1
    if dims not in (-1, last, [-1], [last]) or not argument(maximum, 2, "keepdim", False):
        return None
    reader, node = maximum, maximum.args[0]
    while is_tensor(node) and node is not scores:
        if only_user(node) is not reader:
            return None
        reader, node = node, same_value_input(node)
    return (reader,) if node is scores else None
