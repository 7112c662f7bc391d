"""Reading a graph by what its values are, not by how they are spelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.site import Operand, Views

aten = torch.ops.aten

HEADS_FIRST: Views = ((aten.transpose.int, (1, 2)),)
"""(B, S, N, D) seen as (B, N, S, D), and the other way round."""


def is_call(node: Any, *targets: Any) -> TypeGuard[fx.Node]:
    """Whether ``node`` calls one of ``targets``: operators, or packets for any of their overloads."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    packet = getattr(node.target, "overloadpacket", None)
    return any(node.target is target or packet is target for target in targets)


def value(node: fx.Node) -> torch.Tensor:
    return node.meta["val"]


def is_tensor(node: Any) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def shape(node: fx.Node) -> tuple[Any, ...]:
    return tuple(value(node).shape)


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a call however it was passed."""
    if name in node.kwargs:
        return node.kwargs[name]
    return node.args[position] if len(node.args) > position else default


def given_arguments(node: fx.Node, target: OpOverload | None = None) -> Iterator[tuple[torch.Argument, Any]]:
    """The schema's arguments of an operator call, each with what the call gives for it, or None.

    The schema is that of ``target``, another overload, if one is named.
    """
    schema = (target or node.target)._schema  # type: ignore[union-attr]
    for position, spec in enumerate(schema.arguments):
        yield spec, argument(node, position, spec.name)


def node_input(node: fx.Node, position: int = 0) -> fx.Node:
    """The input of a call at ``position``, where the operator takes a tensor."""
    given = node.args[position]
    assert isinstance(given, fx.Node), f"{node.name}: argument {position} is {given!r}, not a tensor"
    return given


def swapped_dims(transpose: fx.Node) -> set[int]:
    """The two dimensions that a call of ``aten.transpose.int`` swaps, counted from the first."""
    rank = len(shape(transpose))
    return {argument(transpose, 1, "dim0") % rank, argument(transpose, 2, "dim1") % rank}


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without adding a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        expressions = [x.node.expr if isinstance(x, torch.SymInt) else x for x in (a, b)]
        return bool(expressions[0] == expressions[1])
    return False


def same_shape(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def required_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal that the program itself requires to be.

    Two symbols may turn out equal; that adds a guard, which can't fail where the program doesn't.
    """
    return same(a, b) or bool(a == b)


def shares_storage(a: fx.Node, b: fx.Node) -> bool:
    return storage(a) == storage(b)


def storage(node: fx.Node) -> int:
    return value(node).untyped_storage()._cdata


def only_user(node: fx.Node) -> fx.Node | None:
    """The one reader of ``node``, or None if there are none or several."""
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def same_value_input(node: fx.Node) -> fx.Node | None:
    """The input that ``node`` equals element for element, with the same shape and dtype, or None.

    A copy that is written to through a view equals its input no longer.
    """
    source = _copied_input(node)
    if source is None or (not shares_storage(node, source) and written_through(node)):
        return None
    return source


def _copied_input(node: fx.Node) -> fx.Node | None:
    if not is_tensor(node):
        return None
    copies = (
        aten.clone,
        aten.contiguous,
        aten.alias,
        aten.detach,
        aten.detach_,
        aten.lift_fresh_copy,
        aten.lift_fresh,
    )
    casts = (aten.to, aten._to_copy, aten.type_as)
    shapes = (aten.view, aten.reshape, aten._unsafe_view, aten.expand, aten.slice)
    source = node.args[0] if node.args else None
    if not is_tensor(source):
        return None
    if is_call(node, *copies) or (
        is_call(node, aten.dropout, aten.dropout_, aten.feature_dropout) and not drops(node)
    ):
        return source
    same_kind = value(node).dtype == value(source).dtype and value(node).device == value(source).device
    if is_call(node, *casts) and same_kind:
        return source
    if is_call(node, *shapes) and same_kind and same_shape(shape(node), shape(source)):
        return source
    return None


def is_float_cast(node: fx.Node) -> bool:
    """Whether ``node`` holds the floats of its input in a dtype of floats."""
    if not is_call(node, aten.to, aten._to_copy) or not is_tensor(node.args[0]):
        return False
    return value(node).dtype.is_floating_point and value(node.args[0]).dtype.is_floating_point


def casts_or_copies(node: fx.Node) -> bool:
    """Whether ``node`` holds what its input does, at most in another dtype of floats."""
    return is_float_cast(node) or same_value_input(node) is not None


def drops(node: fx.Node) -> bool:
    """Whether a dropout call really drops something."""
    return argument(node, 1, "p", 0.5) != 0 and argument(node, 2, "train", True) is not False


def operand(node: fx.Node, reader: fx.Node) -> Operand:
    """``node`` as read by ``reader``, traced back through copies and no-op views."""
    return seen_through(Operand(node, reader))


def seen_through(read: Operand) -> Operand:
    """Trace an operand that has no views back through copies of the same value."""
    node, read_at = read.node, read.read_at
    while (source := same_value_input(node)) is not None:
        if not shares_storage(node, source):
            read_at = node
        node = source
    return Operand(node, read_at, read.views)


def viewed(read: Operand, target: Any, *args: Any) -> Operand:
    return Operand(read.node, read.read_at, (*read.views, (target, args)))


def mutations(graph: fx.Graph) -> Iterator[tuple[fx.Node, int]]:
    """Every write in the graph: the node that writes and the storage it writes to."""
    for node in graph.nodes:
        if not _is_mutable(node):
            continue
        for spec, written in given_arguments(node):
            if spec.alias_info is not None and spec.alias_info.is_write:
                for one in written if isinstance(written, (list, tuple)) else [written]:
                    if is_tensor(one):
                        yield node, storage(one)


def written_through(node: fx.Node) -> bool:
    """Whether ``node``, or a view made of it, is written to after it was made."""
    if any(_writes_to(user, node) for user in node.users):
        return True
    # split, chunk and unbind return lists; their getitems are views too.
    pieces = [piece for user in node.users if not is_tensor(user) for piece in user.users]
    aliases = [one for one in (*node.users, *pieces) if is_tensor(one) and shares_storage(one, node)]
    return any(written_through(alias) for alias in aliases)


def _writes_to(user: fx.Node, node: fx.Node) -> bool:
    """Whether the call ``user`` writes to its argument ``node``, whatever it returns."""
    if not _is_mutable(user) or is_call(user, aten.detach_):
        return False
    return any(
        given is node or (isinstance(given, (list, tuple)) and node in given)
        for spec, given in given_arguments(user)
        if spec.alias_info is not None and spec.alias_info.is_write
    )


def _is_mutable(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


class Writes:
    """All in-place writes of a graph, to ask whether a value can be read later than it was."""

    def __init__(self, graph: fx.Graph) -> None:
        self._writes: dict[int, list[fx.Node]] = {}
        for node, written in mutations(graph):
            self._writes.setdefault(written, []).append(node)

    def between(self, read: Operand, later: fx.Node) -> fx.Node | None:
        """A write to the operand's storage after the program read it and before ``later``."""
        for write in self._writes.get(storage(read.node), ()):
            if read.read_at <= write < later and write is not read.node:
                return write
        return None

    def to(self, node: fx.Node) -> list[fx.Node]:
        """The writes to the storage of ``node``."""
        return self._writes.get(storage(node), [])
