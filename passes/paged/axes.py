"""Where the axes of a value go under view operators.

Each dimension is a list of axes, major first. Views only regroup and reorder them, so two values whose
axes agree lay the same elements out in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from npu_compile.passes.values import argument, aten, is_call, is_tensor, same, same_value_input, shape


@dataclass(frozen=True)
class Axis:
    """An axis named by whoever starts to trace; a part of one that a view split has a dot in its name."""

    name: str
    size: Any


Dims = tuple[tuple[Axis, ...], ...]


_REORDERS = (aten.transpose.int, aten.permute, aten.unsqueeze)
_REGROUPS = (aten.view, aten.reshape, aten._unsafe_view, aten.flatten, aten.unflatten, aten.squeeze)


def names(dims: Dims) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(axis.name for axis in dim) for dim in dims)


def step(node: fx.Node, dims: Dims) -> Dims | None:
    """The axes of ``node``, whose first argument has ``dims``; None unless it's a view or a copy of it."""
    if same_value_input(node) is not None:
        return dims
    if is_call(node, aten.transpose.int):
        order = list(range(len(dims)))
        first, second = (argument(node, i, f"dim{i - 1}") % len(dims) for i in (1, 2))
        order[first], order[second] = order[second], order[first]
        return tuple(dims[i] for i in order)
    if is_call(node, aten.permute):
        return tuple(dims[i % len(dims)] for i in argument(node, 1, "dims"))
    if is_call(node, aten.unsqueeze):
        position = argument(node, 1, "dim") % (len(dims) + 1)
        return (*dims[:position], (), *dims[position:])
    if is_call(node, *_REGROUPS):
        return regroup(dims, shape(node))
    return None


def regroup(dims: Dims, sizes: tuple[Any, ...]) -> Dims | None:
    """The axes of a view of ``dims`` with these sizes; None where it splits an axis of unknown size."""
    axes = [axis for dim in dims for axis in dim if not same(axis.size, 1)]
    found: list[tuple[Axis, ...]] = []
    for size in sizes:
        dim: list[Axis] = []
        product: Any = 1
        while not same(product, size):
            if not axes:
                return None
            if not same(product * axes[0].size, size) and _too_large(product * axes[0].size, size):
                split = _split(axes[0], product, size)
                if split is None:
                    return None
                axes[:1] = split
            product = product * axes[0].size
            dim.append(axes.pop(0))
        found.append(tuple(dim))
    return None if axes else tuple(found)


def _too_large(product: Any, size: Any) -> bool:
    return isinstance(product, int) and isinstance(size, int) and product > size


def _split(axis: Axis, product: int, size: int) -> list[Axis] | None:
    """``axis`` as two, of which the first completes a dimension of ``size``."""
    first, rest = divmod(size, product)
    if rest or axis.size % first:
        return None
    return [
        replace(axis, name=f"{axis.name}.0", size=first),
        replace(axis, name=f"{axis.name}.1", size=axis.size // first),
    ]


def source_of(node: fx.Node) -> fx.Node | None:
    """The tensor that ``node`` is a view or a copy of, by an operator that :func:`step` follows."""
    if same_value_input(node) is None and not is_call(node, *_REORDERS, *_REGROUPS):
        return None
    source = node.args[0]
    return source if isinstance(source, fx.Node) and is_tensor(source) else None
