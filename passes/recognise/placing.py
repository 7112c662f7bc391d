"""Views that bring a tensor of known axes into an order of groups, such as (B, N, S, D)."""

from __future__ import annotations

from typing import Any

from torch import fx

from npu_compile.passes.axes import Axes, Axis, Dim, Frame, is_reshape, permutation_of
from npu_compile.passes.site import Operand, Views
from npu_compile.passes.values import HEADS_FIRST, aten, is_tensor, operand, seen_through, shares_storage


def size_of(dim: Dim) -> Any:
    total: Any = 1
    for axis in dim:
        total = total * axis.size
    return total


def _sizes(groups: Frame) -> list[Any]:
    """Sizes for a reshape; the first symbolic product is left to it, since no tensor may have that size."""
    sizes = [size_of(group) for group in groups]
    products = [i for i, group in enumerate(groups) if len(group) > 1 and not isinstance(sizes[i], int)]
    if products:
        sizes[products[0]] = -1
    return sizes


def views_to(frame: Frame, groups: Frame, whole: int | None = None) -> Views:
    """The views from a tensor of ``frame`` to one whose dimensions are ``groups``.

    An axis of a group that ``frame`` lacks is expanded, unless it lacks all of the group: then that
    dimension is of size 1, but for ``whole``. All axes of ``frame`` must be in a group.
    """
    held = held_axes(frame)
    groups = tuple(group if i == whole or held & set(group) else () for i, group in enumerate(groups))
    if frame == groups:
        return ()
    wanted = [axis for group in groups for axis in group]
    if {*frame, ()} == {*groups, ()}:
        return _reordered(frame, groups)
    views: list[Any] = []
    if _is_merge(frame, groups):
        return ((aten.reshape.default, (_sizes(groups),)),)
    atoms = [axis for dim in frame for axis in dim]
    if frame != tuple((axis,) for axis in atoms):
        views.append((aten.reshape.default, (_sizes(tuple((axis,) for axis in atoms)),)))
    views += _reordered(tuple((axis,) for axis in atoms), tuple((a,) if a in held else () for a in wanted))
    if set(wanted) != held:
        views.append((aten.expand.default, ([-1 if a in held else a.size for a in wanted],)))
    if groups != tuple((axis,) for axis in wanted):
        views.append((aten.reshape.default, (_sizes(groups),)))
    return tuple(views)


def _is_merge(frame: Frame, groups: Frame) -> bool:
    return [axis for dim in frame for axis in dim] == [axis for group in groups for axis in group]


def _reordered(frame: Frame, groups: Frame) -> Views:
    """Dimensions as they are in another order; those of size 1 come and go."""
    views: list[Any] = []
    dims = list(frame)
    while dims.count(()) > groups.count(()):
        at = dims.index(())
        views.append((aten.squeeze.dim, (at,)))
        del dims[at]
    missing = groups.count(()) - dims.count(())
    empty = [i for i, group in enumerate(groups) if group == ()]
    put_in = empty[:missing]
    present = [group for i, group in enumerate(groups) if i not in put_in]
    ones = [i for i, dim in enumerate(dims) if dim == ()]
    order = [dims.index(group) if group else ones.pop(0) for group in present]
    views += permutation(order)
    views += [(aten.unsqueeze.default, (i,)) for i in put_in]
    return tuple(views)


def permutation(order: list[int]) -> Views:
    """The view that reorders dimensions; a swap of two is a transpose, no change is nothing."""
    moved = [i for i, source in enumerate(order) if i != source]
    if not moved:
        return ()
    if len(moved) == 2:
        return ((aten.transpose.int, (moved[0], moved[1])),)
    return ((aten.permute.default, (order,)),)


def placed(node: fx.Node, reader: fx.Node, frame: Frame, groups: Frame, axes: Axes) -> Operand:
    """``node``, as ``reader`` reads it, with the dimensions ``groups``, heads in the second of them.

    Taken from before views that the program made of it where that needs none, or heads and sequence
    swapped alone.
    """
    read = operand(node, reader)
    found: list[Operand] = []
    while True:
        # Going back through a reshape may take axes apart, those of the groups as well.
        frame = axes.resolve(frame)
        found.append(Operand(read.node, read.read_at, views_to(frame, axes.resolve(groups), whole=1)))
        if all(target is aten.unsqueeze.default for target, _ in found[-1].views):
            return found[-1]
        before = _before(read, frame, axes)
        if before is None:
            break
        read, frame = before
    return next((one for one in found if one.views == HEADS_FIRST), found[0])


def _before(read: Operand, frame: Frame, axes: Axes) -> tuple[Operand, Frame] | None:
    """What a view is made of, and its axes."""
    node = read.node
    if not is_reshape(node) and permutation_of(node) is None:
        return None
    source = node.args[0]
    before = axes.before(node, frame)
    if not is_tensor(source) or before is None:
        return None
    read_at = read.read_at if shares_storage(node, source) else node
    return seen_through(Operand(source, read_at)), before


def held_axes(frame: Frame) -> set[Axis]:
    return {axis for dim in frame for axis in dim}
