"""Dropping tensors that a program fills and nobody reads any more, with the writes that fill them.

In-place writes are never dead to a graph's own clean-up. Once attention reads the parts of a key,
the tensor in which the program put them together is only written to.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from npu_compile.passes.mla.pieces import ALLOCATIONS
from npu_compile.passes.values import argument, is_call, is_tensor, shares_storage


def drop_unread(graph: fx.Graph) -> None:
    """Erase every tensor made in the graph that is only written to; values that outlive it are kept."""
    for node in [n for n in graph.nodes if is_call(n, *ALLOCATIONS)]:
        for member in sorted(_family(node) or (), reverse=True):
            graph.erase_node(member)


def _family(made: fx.Node) -> set[fx.Node] | None:
    """``made``, its views and the writes to them; None if anything else reads one of them."""
    family, pending = {made}, [made]
    while pending:
        for user in pending.pop().users:
            if user in family:
                continue
            if not _belongs(user, made):
                return None
            family.add(user)
            pending.append(user)
    return family


def _belongs(user: fx.Node, made: fx.Node) -> bool:
    """Whether ``user`` is a view of, or a write to, the storage of ``made`` and of no other."""
    if user.op != "call_function":
        return False
    if not is_tensor(user):
        return isinstance(user.meta.get("val"), (tuple, list)) and all(
            u.target is operator.getitem and is_tensor(u) and shares_storage(u, made) for u in user.users
        )
    if not shares_storage(user, made):
        return False
    if isinstance(user.target, torch._ops.OpOverload) and user.target._schema.is_mutable:
        return shares_storage(argument(user, 0, "self"), made)
    return True
