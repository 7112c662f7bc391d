"""Cache writes that skip rows of padding.

A row is written where its slot says; padding has slot -1. PyTorch would take -1 for the last slot, so the
rows of padding are made copies of the first row: they write to its slot what it writes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from ..passes.emit_node import call
from ..passes.values import argument
from .memory import Memory

aten = torch.ops.aten


@dataclass(frozen=True)
class SlotWrite:
    """A write of rows to the slots that input ``slots`` names, one a row.

    ``index`` is the 1-D tensor of slots that the write uses, ``rows`` the values, with their rows in ``dim``.
    """

    node: fx.Node
    slots: fx.Node
    index: fx.Node
    rows: fx.Node
    dim: int


def slot_writes(graph: fx.Graph, memory: Memory, has_rows: Callable[[fx.Node], bool]) -> list[SlotWrite]:
    """The writes of rows to inputs of the graph whose slots are an input that serves nothing else."""
    found = []
    for node in graph.nodes:
        if any(base.op == "placeholder" for base in memory.written(node)):
            write = _as_slot_write(node)
            if write is not None and has_rows(write.rows) and _only_slots(write.slots):
                found.append(write)
    return found


def skip_padding(graph: fx.Graph, writes: Sequence[SlotWrite]) -> None:
    """Rewrite ``graph`` so that rows whose slot is negative aren't written. The first row must not be one."""
    for write in writes:
        with graph.inserting_before(write.node):
            is_row = call(graph, aten.ge.Scalar, write.index, 0)
            first_slot = call(graph, aten.slice.Tensor, write.index, 0, 0, 1)
            index = call(graph, aten.where.self, is_row, write.index, first_slot)
            shape = [1] * write.rows.meta["val"].dim()
            shape[write.dim] = -1
            is_row = call(graph, aten.view.default, is_row, shape)
            first_row = call(graph, aten.slice.Tensor, write.rows, write.dim, 0, 1)
            rows = call(graph, aten.where.self, is_row, write.rows, first_row)
        write.node.replace_input_with(write.index, index)
        write.node.replace_input_with(write.rows, rows)


def _as_slot_write(node: fx.Node) -> SlotWrite | None:
    if node.target is aten.index_copy_.default:
        _, dim, index, rows = node.args[:4]
    elif node.target is aten.index_put_.default and not (len(node.args) > 3 and node.args[3]):
        indices, rows = argument(node, 1, "indices"), argument(node, 2, "values")
        given = [index for index in indices if index is not None]
        if len(given) != 1 or indices[0] is None:
            return None
        dim, index = 0, given[0]
    else:
        return None
    if not isinstance(index, fx.Node) or not isinstance(rows, fx.Node) or not isinstance(dim, int):
        return None
    slots = _through_views(index)
    if slots.op != "placeholder" or index.meta["val"].dim() != 1:
        return None
    return SlotWrite(node, slots, index, rows, dim % rows.meta["val"].dim())


def _through_views(node: fx.Node) -> fx.Node:
    while _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_view(node: fx.Node) -> bool:
    """Whether ``node`` gives its argument another shape or dtype."""
    if not isinstance(node.target, OpOverload):
        return False
    return node.target.overloadpacket in (
        aten.view, aten.reshape, aten.flatten, aten.squeeze, aten.unsqueeze, aten.to, aten._to_copy,
    )  # fmt: skip


def _only_slots(slots: fx.Node) -> bool:
    """Whether an input is used for slot writes only: -1 must not reach anything else."""
    todo, writes = [slots], 0
    while todo:
        for user in todo.pop().users:
            if _is_view(user):
                todo.append(user)
            elif user.target in (aten.index_copy_.default, aten.index_put_.default):
                writes += 1
            else:
                return False
    return writes > 0
