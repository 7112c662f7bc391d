"""The parts along the head dim that a tensor was put together from: by cat, or by slice writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from npu_compile.passes.recognise.assemble import operand_shape
from npu_compile.passes.site import Operand, Views
from npu_compile.passes.values import (
    HEADS_FIRST,
    Writes,
    argument,
    aten,
    is_call,
    is_tensor,
    same,
    same_shape,
    same_value_input,
    shape,
    shares_storage,
    value,
)

_CUTS = (aten.slice.Tensor, aten.narrow.default)

ALLOCATIONS = (
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.new_zeros,
    aten.zeros,
    aten.zeros_like,
)
"""Operators that make a tensor for others to fill."""


@dataclass(frozen=True)
class Piece:
    """``source`` is at columns ``start`` up to ``start + width``; it broadcasts over its dims of size 1."""

    source: Operand
    start: int
    width: int


def owner(node: fx.Node) -> fx.Node:
    """The node that made the storage which ``node`` is a view of, as far as views lead back."""
    while node.op == "call_function" and node.args and isinstance(source := node.args[0], fx.Node):
        if _storages(source).isdisjoint(_storages(node)):
            break
        node = source
    return node


def _storages(node: fx.Node) -> set[int]:
    found = node.meta.get("val")
    tensors = found if isinstance(found, (tuple, list)) else [found]
    return {t.untyped_storage()._cdata for t in tensors if isinstance(t, torch.Tensor)}


def unsliced(read: Operand) -> tuple[Operand, Views] | None:
    """A (B, N, S, D) operand from before its sequence was cut, and the cuts that lead back to it.

    The operand is a node of four dimensions, or :data:`HEADS_FIRST` of one. None if ``read`` has other views.
    """
    views = _reordered(read.views)
    turned = views[-1:] == HEADS_FIRST
    views = views[:-1] if turned else views
    if len(shape(read.node)) != 4 or any(t not in _CUTS or a[0] != (1 if turned else 2) for t, a in views):
        return None
    cuts = [(target, (2, *arguments[1:])) for target, arguments in views]
    node, read_at = read.node, read.read_at
    while True:
        if (source := same_value_input(node)) is not None:
            read_at = node if not shares_storage(node, source) else read_at
        elif (
            is_call(node, aten.transpose.int) and _reordered(((node.target, node.args[1:3]),)) == HEADS_FIRST
        ):
            turned = not turned
            source = argument(node, 0, "self")
        elif (
            is_call(node, *_CUTS)
            and argument(node, 1, "dim", 0) % 4 == (1 if turned else 2)
            and not node.kwargs
        ):
            cuts.insert(0, (node.target, (2, *node.args[2:])))
            source = argument(node, 0, "self")
        else:
            break
        node = source
    return Operand(node, read_at, HEADS_FIRST if turned else ()), tuple(cuts)


def _reordered(views: Views) -> Views:
    """Views that only reorder dimensions, as :data:`HEADS_FIRST` or none; others as they are."""
    order = [0, 1, 2, 3]
    for target, arguments in views:
        if target is aten.transpose.int:
            a, b = (d % 4 for d in arguments)
            order[a], order[b] = order[b], order[a]
        elif target is aten.permute.default:
            order = [order[d] for d in arguments[0]]
        else:
            return views
    if order == [0, 1, 2, 3]:
        return ()
    return HEADS_FIRST if order == [0, 2, 1, 3] else views


def pieces(read: Operand, writes: Writes) -> tuple[Piece, ...]:
    """A (B, N, S, D) operand as parts along D, in order; empty where it isn't made of parts."""
    found = unsliced(read)
    if found is None:
        return ()
    uncut, cuts = found
    whole = uncut.node
    if is_call(whole, aten.cat) and not writes.to(whole):
        parts = _of_cat(whole)
    elif is_call(whole, *ALLOCATIONS):
        parts = _of_writes(whole, read.read_at, writes)
    else:
        return ()
    return tuple(Piece(_again(part.source, uncut.views, cuts), part.start, part.width) for part in parts)


def _again(part: Operand, turn: Views, cuts: Views) -> Operand:
    """The views of the whole on a part of it."""
    views = part.views + turn
    one_token = same(operand_shape(Operand(part.node, part.read_at, views))[2], 1)
    return Operand(part.node, part.read_at, views if one_token else views + cuts)


def _of_cat(node: fx.Node) -> list[Piece]:
    rank = len(shape(node))
    if argument(node, 1, "dim", 0) % rank != rank - 1:
        return []
    parts, start = [], 0
    for part in argument(node, 0, "tensors"):
        width = shape(part)[-1]
        if not isinstance(width, int) or len(shape(part)) != rank:
            return []
        parts.append(Piece(Operand(part, node), start, width))
        start += width
    return parts


def _of_writes(whole: fx.Node, reader: fx.Node, writes: Writes) -> list[Piece]:
    """Slice writes before ``reader`` that fill all columns of a fresh tensor, each column once."""
    parts = []
    for write in writes.to(whole):
        columns = _columns(write, whole) if is_call(write, aten.copy_) else None
        if columns is None or not write < reader:
            return []
        parts.append(Piece(Operand(argument(write, 1, "src"), write), *columns))
    parts.sort(key=lambda piece: piece.start)
    ends = [0, *(piece.start + piece.width for piece in parts)]
    filled = [piece.start for piece in parts] == ends[:-1] and same(ends[-1], shape(whole)[-1])
    return parts if filled else []


def _columns(write: fx.Node, whole: fx.Node) -> tuple[int, int] | None:
    """(first column, number of columns) of a write to all rows of ``whole``."""
    destination, source = argument(write, 0, "self"), argument(write, 1, "src")
    if not is_tensor(source) or value(source).dtype != value(whole).dtype:
        return None
    if len(shape(source)) != len(shape(whole)) or not same(shape(source)[-1], shape(destination)[-1]):
        return None
    sizes = zip(shape(whole), value(destination).stride(), value(whole).stride(), strict=True)
    if not same_shape(shape(destination)[:-1], shape(whole)[:-1]) or not all(
        same(size, 1) or same(mine, theirs) for size, mine, theirs in sizes
    ):
        return None
    start = value(destination).storage_offset() - value(whole).storage_offset()
    width = shape(destination)[-1]
    if not isinstance(start, int) or not isinstance(width, int) or start + width > shape(whole)[-1]:
        return None
    return start, width
