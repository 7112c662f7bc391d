"""A sink that joins behind the product with V: out * sigmoid(logsumexp(scores) - sink).

This is what the softmax gives with one more logit, ``sink``, in each row's sum and no value for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from npu_compile.passes.values import (
    argument,
    aten,
    casts_or_copies,
    is_call,
    is_tensor,
    only_user,
    same,
    same_shape,
    shape,
)


@dataclass(frozen=True)
class LateSink:
    """``output`` is ``product`` times the gate that ``joined``, logsumexp - sink, makes.

    ``sink`` broadcasts to the log-sum-exp, which is the scores without their last axis, or with 1 in its
    place (``keepdim``).
    """

    logsumexp: fx.Node
    joined: fx.Node
    sink: fx.Node
    keepdim: bool
    product: fx.Node
    output: fx.Node


def late_sink(scores: Any) -> LateSink | None:
    """The sink that joins by the log-sum-exp of ``scores``, if there is one and it does nothing else."""
    if not is_tensor(scores):
        return None
    sums = [user for user in scores.users if is_call(user, aten.logsumexp) and _over_last(user, scores)]
    return _gate(sums[0]) if len(sums) == 1 else None


def _over_last(logsumexp: fx.Node, scores: fx.Node) -> bool:
    last = len(shape(scores)) - 1
    return argument(logsumexp, 1, "dim") in ([-1], [last], -1, last)


def _gate(logsumexp: fx.Node) -> LateSink | None:
    keepdim = bool(argument(logsumexp, 2, "keepdim", False))
    joined = _after_casts(logsumexp)
    if not is_call(joined, aten.sub.Tensor) or argument(joined, 2, "alpha", 1) != 1:
        return None
    left, sink = joined.args[:2]
    if not _comes_from(left, logsumexp) or not is_tensor(sink):
        return None
    if not same_shape(shape(joined), shape(logsumexp)):
        return None
    gate = _after_casts(joined)
    if not is_call(gate, aten.sigmoid):
        return None
    output, rank = _after_casts(gate), len(shape(gate))
    if not keepdim and is_call(output, aten.unsqueeze) and argument(output, 1, "dim") in (-1, rank):
        output = _after_casts(output)
    if not is_call(output, aten.mul.Tensor):
        return None
    for product, other in (output.args[:2], output.args[1::-1]):
        if is_tensor(product) and _is_column_beside(other, product) and _comes_from(other, gate):
            return LateSink(logsumexp, joined, sink, keepdim, product, output)
    return None


def _after_casts(node: fx.Node) -> fx.Node | None:
    """The one reader of ``node``, behind casts and copies."""
    user = only_user(node)
    while user is not None and casts_or_copies(user):
        user = only_user(user)
    return user


def _comes_from(node: Any, source: fx.Node) -> bool:
    """Whether ``node`` is ``source`` behind casts, copies and a last axis of 1."""
    while is_tensor(node) and node is not source:
        if not casts_or_copies(node) and not is_call(node, aten.unsqueeze):
            return False
        node = node.args[0]
    return node is source


def _is_column_beside(gate: Any, product: fx.Node) -> bool:
    """(..., 1) beside (..., D_v): one factor for each row."""
    if not is_tensor(gate) or len(shape(gate)) != len(shape(product)):
        return False
    return same(shape(gate)[-1], 1) and same_shape(shape(gate)[:-1], shape(product)[:-1])
