"""Operators that move elements: the result's element is an element of the input at another index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from npu_compile.passes.mask.interpret import Interpreter, arguments, own_index, rule
from npu_compile.passes.mask.linear import Dim, Linear, floor, size
from npu_compile.passes.mask.values import Number, Sum, Unknown, Value, dims, substitute, transform
from npu_compile.passes.values import argument, aten, is_tensor, same, same_shape, shape, value


def source_of(node: fx.Node) -> fx.Node:
    return arguments(node)[0]


def moved(interpreter: Interpreter, node: fx.Node, index: Mapping[int, Linear]) -> Value:
    """The first argument's value with its index variables replaced; ``index`` goes by negative axis."""
    source = interpreter.read(source_of(node), node)
    if not isinstance(source, Sum):
        return substitute(source, index)
    if same_shape(shape(node), shape(source_of(node))) and all(
        v == Linear.of(Dim(d)) for d, v in index.items()
    ):
        return source
    raise Unknown


def positive(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


@rule(
    aten.alias, aten.detach, aten.detach_, aten.clone, aten.contiguous, aten.lift_fresh_copy, aten.lift_fresh
)
def _same(interpreter: Interpreter, node: fx.Node) -> Value:
    return moved(interpreter, node, {})


@rule(aten.expand.default, aten.expand_as.default, aten.broadcast_to.default)
def _expand(interpreter: Interpreter, node: fx.Node) -> Value:
    return interpreter.read(source_of(node), node)


@rule(aten.repeat.default)
def _repeat(interpreter: Interpreter, node: fx.Node) -> Value:
    """Repetition along dimensions of size 1, which is what expanding does."""
    sizes, counts = shape(source_of(node)), arguments(node)[1]
    pairs = zip(reversed(sizes), reversed(counts), strict=False)
    if not all(same(n, 1) or same(count, 1) for n, count in pairs):
        raise Unknown
    return _expand(interpreter, node)


@rule(aten.unsqueeze.default)
def _unsqueeze(interpreter: Interpreter, node: fx.Node) -> Value:
    rank = len(shape(node))
    new = positive(arguments(node)[1], rank) - rank
    return moved(interpreter, node, {axis: Linear.of(Dim(axis - 1)) for axis in range(1 - rank, new + 1)})


@rule(aten.view.default, aten.reshape.default, aten._unsafe_view.default)
@rule(aten.squeeze, aten.flatten.using_ints)
def _reshape(interpreter: Interpreter, node: fx.Node) -> Value:
    before, after = shape(source_of(node)), shape(node)
    source = interpreter.read(source_of(node), node)
    if isinstance(source, Sum):
        return moved(interpreter, node, {})
    index = _regrouped(before, after)
    if dims(source) - index.keys():
        raise Unknown
    prover = interpreter.prover
    return transform(substitute(source, index), lambda linear: prover.tidied(linear, after))


def _regrouped(before: Any, after: Any) -> dict[int, Linear]:
    """Each index of the input in terms of the result's: dimensions that stay, and those split or merged."""
    old = [i - len(before) for i, n in enumerate(before) if not _one(n)]
    new = [i - len(after) for i, n in enumerate(after) if not _one(n)]
    index: dict[int, Linear] = {}
    while old and new and same(before[old[0]], after[new[0]]):
        index[old.pop(0)] = Linear.of(Dim(new.pop(0)))
    while old and new and same(before[old[-1]], after[new[-1]]):
        index[old.pop()] = Linear.of(Dim(new.pop()))
    strides, places = _strides(before, old), _strides(after, new)
    if strides is None or places is None:
        return index
    position = Linear()
    for axis, place in zip(new, places, strict=True):
        position = position + Linear.of(Dim(axis)) * place
    for axis, stride in zip(old, strides, strict=True):
        index[axis] = floor(position, stride)
        if axis != old[0]:
            index[axis] = index[axis] - floor(position, stride * before[axis]) * before[axis]
    return index


def _strides(sizes: Any, axes: list[int]) -> list[int] | None:
    """How many elements of the dimensions ``axes`` one step along each is; None if a size is symbolic."""
    strides = [1]
    for axis in reversed(axes[1:]):
        if not isinstance(sizes[axis], int):
            return None
        strides.insert(0, strides[0] * sizes[axis])
    return strides[: len(axes)]


def _one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


@rule(aten.permute.default, aten.transpose.int, aten.t.default, aten.swapaxes.default)
def _permute(interpreter: Interpreter, node: fx.Node) -> Value:
    rank = len(shape(node))
    if rank < 2:
        return moved(interpreter, node, {})
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [positive(axis, rank) for axis in arguments(node)[1]]
    else:
        swapped = arguments(node)[1:3] or (0, -1)
        a, b = (positive(axis, rank) for axis in swapped)
        order[a], order[b] = order[b], order[a]
    return moved(interpreter, node, {old - rank: Linear.of(Dim(new - rank)) for new, old in enumerate(order)})


@rule(aten.slice.Tensor, aten.narrow.default)
def _slice(interpreter: Interpreter, node: fx.Node) -> Value:
    axis = positive(argument(node, 1, "dim", 0), len(shape(node))) - len(shape(node))
    start = argument(node, 2, "start", None) or 0
    if argument(node, 4, "step", 1) != 1:
        raise Unknown
    first = _from_front(interpreter, start, shape(source_of(node))[axis])
    own = own_index(shape(node))[axis]
    return moved(interpreter, node, {axis: own + first})


@rule(aten.select.int)
def _select(interpreter: Interpreter, node: fx.Node) -> Value:
    rank = len(shape(source_of(node)))
    axis = positive(arguments(node)[1], rank) - rank
    at = _from_front(interpreter, arguments(node)[2], shape(source_of(node))[axis])
    left = {old: Linear.of(Dim(old + 1)) for old in range(-rank, axis)}
    return moved(interpreter, node, {**left, axis: at})


def _from_front(interpreter: Interpreter, at: Any, length: Any) -> Linear:
    """A position counted from the front, as slicing reads ``at``."""
    if isinstance(at, fx.Node):
        at = at.meta["val"]
    if not isinstance(at, (int, torch.SymInt)):
        raise Unknown
    position = size(at)
    if interpreter.prover.nonnegative(position):
        inside = interpreter.prover.nonnegative(size(length) - position)
        if inside or position == Linear():
            return position
    elif interpreter.prover.nonnegative(-position - 1) and interpreter.prover.nonnegative(
        size(length) + position
    ):
        return size(length) + position
    raise Unknown


@rule(aten.index.Tensor)
def _gather(interpreter: Interpreter, node: fx.Node) -> Value:
    """``x[i, j, ...]`` with an index tensor for every dimension, each a known integer in range."""
    source_node, indices = arguments(node)[:2]
    rank = len(shape(source_node))
    if len(indices) != rank or not all(is_tensor(i) for i in indices):
        raise Unknown
    index: dict[int, Linear] = {}
    for axis, tensor in enumerate(indices):
        at = interpreter.read(tensor, node)
        last = size(shape(source_node)[axis]) - 1
        if value(tensor).dtype == torch.bool or not isinstance(at, Number):
            raise Unknown
        for bound in (at.linear, last - at.linear):
            if not interpreter.prover.nonnegative(bound, shape(node)):
                raise Unknown
        index[axis - rank] = Linear() if last.is_const and last.const == 0 else at.linear
    return moved(interpreter, node, index)
