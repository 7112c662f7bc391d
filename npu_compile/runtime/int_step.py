"""The length program as Python arithmetic, where every tensor in it holds one number.

The counter of a static cache is such a tensor, and a handful of Python operations cost a tenth of the
tensor operations they stand for.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..passes.values import node_input
from .length_program import SMALL, LengthProgram

aten = torch.ops.aten

ARITHMETIC: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
    aten.neg.default: operator.neg,
    aten.minimum.default: builtins.min,
    aten.maximum.default: builtins.max,
    aten.clone.default: operator.pos,
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    torch.sym_max: builtins.max,
    torch.sym_min: builtins.min,
}
IN_PLACE = {aten.add_.Tensor: operator.add, aten.sub_.Tensor: operator.sub, aten.mul_.Tensor: operator.mul}
VIEWS = (aten.reshape.default, aten.view.default, aten.expand.default, aten.unsqueeze.default)


class _NotInts(Exception):
    """The program holds a tensor of different numbers, or an operator without a Python form."""


@dataclass
class _Cell:
    """Memory that holds one number throughout: all views of it share the cell, and a write changes it."""

    value: Any


def int_step(program: LengthProgram) -> fx.GraphModule | None:
    """A module from the numbers that ``program`` reads to its length lists and its states after the step.

    None where the program isn't of the kind.
    """
    graph = fx.Graph()
    cells: dict[fx.Node, _Cell] = {}
    try:
        for node in program.module.graph.nodes:
            if node.op != "output":
                cells[node] = _translate(program.module, node, graph, cells)
    except _NotInts:
        return None
    results: Any = program.module.graph.output_node().args[0]
    count = len(results) - len(program.states)
    lists = [graph.call_function(operator.mul, ([cells[n].value], _elements(n))) for n in results[:count]]
    graph.output((lists, [cells[node].value for node in results[count:]]))
    return fx.GraphModule({}, graph, "IntStep")


def _translate(module: fx.GraphModule, node: fx.Node, graph: fx.Graph, cells: dict[fx.Node, _Cell]) -> _Cell:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype == torch.bool):
        raise _NotInts
    if node.op == "placeholder":
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise _NotInts
        return _Cell(graph.placeholder(node.name))
    if node.op == "get_attr":
        numbers = set(getattr(module, str(node.target)).reshape(-1).tolist())
        if len(numbers) != 1:
            raise _NotInts
        return _Cell(numbers.pop())
    if node.target is aten.full.default:
        return _Cell(_operand(node.args[1], cells))
    operands = [_operand(arg, cells) for arg in node.args if not isinstance(arg, list | tuple)]
    if node.target in VIEWS:
        source: Any = node.args[0]
        return cells[source] if _share_memory(node, source) else _Cell(cells[source].value)
    if node.target is aten.clamp.default and not node.kwargs:
        return _Cell(_clamp(graph, *operands))
    if node.target in IN_PLACE and not node.kwargs:
        cell = cells[node_input(node)]
        cell.value = graph.call_function(IN_PLACE[node.target], tuple(operands))
        return cell
    if node.target in ARITHMETIC and not node.kwargs:
        return _Cell(graph.call_function(ARITHMETIC[node.target], tuple(operands)))
    raise _NotInts


def _operand(arg: Any, cells: dict[fx.Node, _Cell]) -> Any:
    """What stands for an argument: a node of the new graph, or an int."""
    if isinstance(arg, fx.Node):
        return cells[arg].value
    if arg is None or isinstance(arg, int):
        return arg
    raise _NotInts


def _clamp(graph: fx.Graph, value: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        value = graph.call_function(builtins.max, (value, low))
    return value if high is None else graph.call_function(builtins.min, (value, high))


def _share_memory(a: fx.Node, b: fx.Node) -> bool:
    storages = [node.meta["val"].untyped_storage()._cdata for node in (a, b)]
    return bool(storages[0] == storages[1])


def _elements(node: fx.Node) -> int:
    count = node.meta["val"].numel()
    if not isinstance(count, int) or count > SMALL:
        raise _NotInts
    return count
