"""Softmaxes between two products: attention in a spelling that no rule reads is listed, never passed over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.recognise.score_steps import steps_to
from npu_compile.passes.recognise.where_from import operator_name
from npu_compile.passes.values import Writes, aten, is_call, is_tensor, value

_PRODUCTS = (aten.matmul, aten.bmm, aten.mm, aten.baddbmm, aten.baddbmm_, aten.einsum)
"""Products that may be one with keys or values."""
_PASSED_THROUGH = (
    aten.cat,
    aten.dropout,
    aten.dropout_,
    aten._to_copy,
    aten.pad,
    aten.constant_pad_nd,
    aten.masked_fill,
    aten.masked_fill_,
    aten.where,
    aten.type_as,
    aten.multiply,
    aten.divide,
    aten.subtract,
)
"""Operators of which torch tags not all overloads pointwise, or that leave most elements in their places."""
_MOST_NODES = 200
"""How many nodes are looked at on either side of a softmax."""


def is_attention_like(softmax: fx.Node, writes: Writes) -> bool:
    """Whether ``softmax`` lies between two products, apart from elementwise operators, views and copies.

    The one above must be of activations: that of a router is with a weight.
    """

    def read(node: fx.Node) -> Iterator[fx.Node]:
        yield from _read(node)
        for write in writes.to(node):
            yield from write.all_input_nodes

    above, below = _path(softmax, read), _path(softmax, _users)
    return above is not None and below is not None and not _is_weight(_last_factor(above[-1]))


def why_not_read(softmax: fx.Node) -> str:
    """What it is that no rule reads in the scores that go into ``softmax``."""
    above = _path(softmax, _read)
    if above is None:
        return "the scores are put together of parts, each written in its place"
    for made, scores in itertools.pairwise(above[1:]):
        if all(step.scores is not scores for step in steps_to(made)):
            return f"the scores go through {operator_name(made)}, which is not understood"
    return f"the scores are made by {operator_name(above[-1])}, which is not understood as queries by keys"


def _path(start: fx.Node, following: Callable[[fx.Node], Iterable[fx.Node]]) -> list[fx.Node] | None:
    """The shortest way from ``start`` to a product, both included."""
    came_from: dict[fx.Node, fx.Node | None] = {start: None}
    queue = [start]
    for node in queue:
        for one in following(node):
            if one in came_from or not is_tensor(one):
                continue
            came_from[one] = node
            if is_call(one, *_PRODUCTS):
                return list(_back(one, came_from))[::-1]
            if _is_passed_through(one) and len(queue) < _MOST_NODES:
                queue.append(one)
    return None


def _read(node: fx.Node) -> Iterator[fx.Node]:
    """What ``node`` is computed from, element by element; conditions only choose."""
    inputs = node.all_input_nodes
    yield from inputs[1:] if is_call(node, aten.where.self, aten.where.ScalarOther) else inputs


def _back(node: fx.Node | None, came_from: dict[fx.Node, fx.Node | None]) -> Iterator[fx.Node]:
    while node is not None:
        yield node
        node = came_from[node]


def _is_passed_through(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or is_call(node, aten.index, aten.gather):
        return False
    given = node.target._schema.arguments
    view = bool(given) and given[0].alias_info is not None and not given[0].alias_info.is_write
    return view or torch.Tag.pointwise in node.target.tags or is_call(node, *_PASSED_THROUGH)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    yield from node.users


def _last_factor(product: fx.Node) -> fx.Node:
    return [node for node in product.all_input_nodes if is_tensor(node)][-1]


def _is_weight(node: fx.Node) -> bool:
    """Whether it is a matrix that the graph is given, seen through views and casts: keys have a batch."""
    while node.op == "call_function" and _is_passed_through(node) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node.op in ("placeholder", "get_attr") and value(node).ndim <= 2
