"""Abstract interpretation of the subgraph that makes a mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from npu_compile.passes.constant import number_in, written_down
from npu_compile.passes.mask.formula import FALSE, TRUE, Element
from npu_compile.passes.mask.linear import Dim, Held, Linear, size
from npu_compile.passes.mask.prover import Prover, Shape
from npu_compile.passes.mask.values import Choice, Number, Sum, Truth, Unknown, Value, choice, typed
from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, is_tensor, shape, value

Rule = Callable[["Interpreter", fx.Node], Value]

MAX_DEPTH = 120
"""Longer chains of operators than any mask needs: an activation, not a mask."""


class Interpreter:
    """Values of a graph's nodes, each worked out once.

    A node that isn't understood stands for itself (a leaf). In-place writes are respected: a
    tensor that was written to between its definition and its reader makes the reader a leaf.
    """

    def __init__(self, graph: fx.Graph, writes: Writes, prover: Prover, rules: Mapping[Any, Rule]) -> None:
        self.graph = graph
        self.prover = prover
        self._rules = rules
        self._writes = writes
        self._values: dict[fx.Node, Value] = {}
        self._depth = 0

    def value(self, node: fx.Node) -> Value:
        """The value of ``node`` right after it is computed."""
        found = self._values.get(node)
        if found is None:
            found = self._values[node] = self._compute(node)
        return found

    def read(self, operand: Any, reader: fx.Node) -> Value:
        """The value of an argument of ``reader`` when ``reader`` runs.

        Raises:
            Unknown: the tensor was written to since it was computed.
        """
        if not is_tensor(operand):
            return scalar(operand)
        if self._writes.between(Operand(operand, operand), reader) is not None:
            raise Unknown
        return self.value(operand)

    def operands(self, node: fx.Node, count: int) -> tuple[Value, ...]:
        """The values of the first ``count`` arguments of ``node``."""
        if len(node.args) < count:
            raise Unknown
        return tuple(self.read(operand, node) for operand in node.args[:count])

    def simplified(self, result: Value, node: fx.Node) -> Value:
        """``result``, the value of ``node``, with its formulas made as short as is easily proved."""
        if isinstance(result, Truth):
            return Truth(self.prover.simplify(result.formula, shape(node)))
        if isinstance(result, Choice):
            return choice(
                (number, self.prover.simplify(where, shape(node))) for number, where in result.cases
            )
        return result

    def _compute(self, node: fx.Node) -> Value:
        rule = self._rules.get(node.target) if node.op == "call_function" else None
        if node.op == "get_attr":
            rule = _constant
        if rule is None or self._depth > MAX_DEPTH or not is_tensor(node):
            return leaf(node)
        self._depth += 1
        try:
            found = rule(self, node)
            return found if isinstance(found, Sum) else typed(found, node)
        except Unknown:
            return leaf(node)
        finally:
            self._depth -= 1


RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register how operators act on values; a packet stands for all of its overloads."""

    def register(function: Rule) -> Rule:
        for target in targets:
            if isinstance(target, torch._ops.OpOverloadPacket):
                RULES.update({getattr(target, name): function for name in target.overloads()})
            else:
                RULES[target] = function
        return function

    return register


def arguments(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.args)


def leaf(node: fx.Node) -> Value:
    """A tensor as it is."""
    index = own_index(shape(node))
    kind = value(node).dtype
    if kind == torch.bool:
        return Truth(Element(node, index))
    if kind.is_floating_point or kind.is_complex:
        return Sum((node,))
    return Number(Linear.of(Held(node, index)))


def own_index(sizes: Shape) -> tuple[Linear, ...]:
    """Each dimension's own index variable; 0 along dimensions of size 1."""
    rank = len(sizes)
    return tuple(
        Linear() if isinstance(n, int) and n == 1 else Linear.of(Dim(i - rank)) for i, n in enumerate(sizes)
    )


def scalar(argument: Any) -> Value:
    """A number or a symbolic integer given as an argument.

    Raises:
        Unknown: it is something else.
    """
    if isinstance(argument, bool):
        return Choice.const(int(argument))
    if isinstance(argument, fx.Node):
        argument = argument.meta.get("val")
    if isinstance(argument, (int, torch.SymInt)) and not isinstance(argument, bool):
        return Number(size(argument))
    if isinstance(argument, float):
        return Choice.const(argument)
    raise Unknown


def _constant(interpreter: Interpreter, node: fx.Node) -> Value:
    """A one-element tensor that the program made from a Python number while it was traced."""
    number = number_in(written_down(node))
    if number is None or isinstance(number, complex):
        raise Unknown
    if isinstance(number, bool):
        return Truth(TRUE if number else FALSE)
    return Number(Linear(number)) if isinstance(number, int) else Choice.const(number)
