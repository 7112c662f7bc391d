"""Which axis is which: the dimensions of tensors on the way through reshapes and permutations.

Whoever starts to trace makes the axes (batch, heads, queries, keys, ...). A dimension is the axes that were
merged into it, outermost first; a dimension of size 1 has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from npu_compile.passes.values import argument, aten, is_call, same, shape

Dim = tuple["Axis", ...]
Frame = tuple[Dim, ...]
"""The dimensions of one tensor."""


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a size that isn't 1; two are the same only if they are one object."""

    size: Any


class Axes:
    """The axes of one attention computation. An axis that a reshape takes apart is so everywhere."""

    def __init__(self) -> None:
        self._parts: dict[Axis, Dim] = {}

    def resolve(self, frame: Frame) -> Frame:
        """``frame`` in terms of axes that have not been taken apart."""
        return tuple(self._whole(dim) for dim in frame)

    def _whole(self, dim: Dim) -> Dim:
        parts = [self._whole(self._parts[axis]) if axis in self._parts else (axis,) for axis in dim]
        return tuple(axis for part in parts for axis in part)

    def reshaped(self, frame: Frame, sizes: tuple[Any, ...]) -> Frame | None:
        """``frame`` after a reshape to ``sizes``; None if that mixes axes."""
        left = [axis for dim in self.resolve(frame) for axis in dim]
        made: list[Dim] = []
        for size in sizes:
            taken: list[Axis] = []
            done: Any = 1
            while not same(done, size):
                if not left:
                    return None
                first = left.pop(0)
                if _quotient(size, done * first.size) is None:
                    pair = self._split(first, _quotient(size, done))
                    if pair is None:
                        return None
                    first, rest = pair
                    left.insert(0, rest)
                taken.append(first)
                done = done * first.size
            made.append(tuple(taken))
        return None if left else tuple(made)

    def _split(self, axis: Axis, size: Any) -> tuple[Axis, Axis] | None:
        """``axis`` as an outer one of ``size`` and an inner one of the rest."""
        rest = None if size is None else _quotient(axis.size, size)
        if rest is None:
            return None
        pair = Axis(size), Axis(rest)
        self._parts[axis] = pair
        return pair

    def after(self, view: fx.Node, frame: Frame) -> Frame | None:
        """The frame of ``view``, whose input has ``frame``; None if it isn't a view that keeps axes whole."""
        order = permutation_of(view)
        if order is not None:
            return tuple(frame[i] for i in order)
        return self.reshaped(frame, shape(view)) if is_reshape(view) else None

    def before(self, view: fx.Node, frame: Frame) -> Frame | None:
        """The frame of the input of ``view``, which itself has ``frame``."""
        source = view.args[0]
        assert isinstance(source, fx.Node)
        order = permutation_of(view)
        if order is not None:
            return tuple(frame[order.index(i)] for i in range(len(order)))
        return self.reshaped(frame, shape(source)) if is_reshape(view) else None


def _quotient(a: Any, b: Any) -> Any:
    """a / b where that is known to be an integer, else None."""
    if isinstance(b, int) and b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    if same(a, b):
        return 1
    quotient = a // b
    return quotient if same(quotient * b, a) else None


def fresh(sizes: tuple[Any, ...]) -> Frame:
    """A frame of new axes, one a dimension."""
    return tuple(() if same(size, 1) else (Axis(size),) for size in sizes)


def is_reshape(node: fx.Node) -> bool:
    reshapes = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints)
    return is_call(node, *reshapes, aten.unflatten.int, aten.unsqueeze.default, aten.squeeze)


def permutation_of(node: fx.Node) -> list[int] | None:
    """For a permutation of dimensions: where each dimension of the result comes from; None for others."""
    if not is_call(node, aten.transpose.int, aten.permute.default, aten.t, aten.mT, aten.adjoint):
        return None
    rank = len(shape(node))
    if is_call(node, aten.permute.default):
        return [dim % rank for dim in argument(node, 1, "dims")]
    swapped = (-2, -1)
    if is_call(node, aten.transpose.int):
        swapped = (argument(node, 1, "dim0"), argument(node, 2, "dim1"))
    order = list(range(rank))
    if rank >= 2:
        first, second = swapped[0] % rank, swapped[1] % rank
        order[first], order[second] = second, first
    return order
