"""Comparisons, and/or/not, and selection by a condition."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.passes.mask.formula import Formula, conjunction, disjunction, negation
from npu_compile.passes.mask.interpret import Interpreter, rule
from npu_compile.passes.mask.linear import Dim, Linear, size
from npu_compile.passes.mask.values import (
    Number,
    Truth,
    Unknown,
    Value,
    as_choice,
    as_truth,
    bounded,
    combine,
    select,
    typed,
)
from npu_compile.passes.values import argument, aten, is_tensor, shape, value


def _order(
    targets: tuple[Any, ...], numbers: Callable[[float, float], bool], form: Callable[..., Formula]
) -> None:
    """Register a comparison.

    ``form(interpreter, a - b, shape)`` compares integers, ``numbers(a, b)`` known values.
    """

    @rule(*targets)
    def compare(interpreter: Interpreter, node: fx.Node) -> Value:
        a, b = interpreter.operands(node, 2)
        if isinstance(a, Number) and isinstance(b, Number):
            return Truth(form(interpreter, a.linear - b.linear, shape(node)))
        x, y = (as_choice(v, _compared_in(node)) for v in (a, b))
        result = combine(x, y, lambda p, q: float(numbers(p, q)))
        return interpreter.simplified(Truth(result.where(bool)), node)


def _compared_in(node: fx.Node) -> torch.dtype:
    """The dtype of a comparison: a float tensor's own with a Python number, else one that holds both."""
    kinds = [value(x).dtype for x in node.args[:2] if is_tensor(x)]
    return kinds[0] if len(kinds) == 1 and kinds[0].is_floating_point else torch.float64


_order((aten.ge.Tensor, aten.ge.Scalar), operator.ge, lambda i, d, s: i.prover.compare(d, s))
_order((aten.le.Tensor, aten.le.Scalar), operator.le, lambda i, d, s: i.prover.compare(-d, s))
_order((aten.gt.Tensor, aten.gt.Scalar), operator.gt, lambda i, d, s: i.prover.compare(d - 1, s))
_order((aten.lt.Tensor, aten.lt.Scalar), operator.lt, lambda i, d, s: i.prover.compare(-d - 1, s))
_order((aten.eq.Tensor, aten.eq.Scalar), operator.eq, lambda i, d, s: i.prover.equal(d, s))
_order((aten.ne.Tensor, aten.ne.Scalar), operator.ne, lambda i, d, s: negation(i.prover.equal(d, s)))


@rule(aten.__and__, aten.bitwise_and, aten.logical_and, aten.__iand__, aten.bitwise_and_, aten.logical_and_)
def _and(interpreter: Interpreter, node: fx.Node) -> Value:
    return _logical(interpreter, node, conjunction)


@rule(aten.__or__, aten.bitwise_or, aten.logical_or, aten.__ior__, aten.bitwise_or_, aten.logical_or_)
def _or(interpreter: Interpreter, node: fx.Node) -> Value:
    return _logical(interpreter, node, disjunction)


def _logical(interpreter: Interpreter, node: fx.Node, join: Callable[..., Formula]) -> Value:
    if value(node).dtype != torch.bool:
        raise Unknown
    parts = [as_truth(x) for x in interpreter.operands(node, 2)]
    return interpreter.simplified(Truth(bounded(join(parts))), node)


@rule(aten.__xor__, aten.bitwise_xor, aten.logical_xor)
def _xor(interpreter: Interpreter, node: fx.Node) -> Value:
    if value(node).dtype != torch.bool:
        raise Unknown
    a, b = (as_truth(x) for x in interpreter.operands(node, 2))
    either = disjunction([conjunction([a, negation(b)]), conjunction([negation(a), b])])
    return interpreter.simplified(Truth(bounded(either)), node)


@rule(aten.logical_not, aten.bitwise_not, aten.logical_not_, aten.bitwise_not_)
def _not(interpreter: Interpreter, node: fx.Node) -> Value:
    if value(node).dtype != torch.bool:
        raise Unknown
    return Truth(negation(as_truth(interpreter.read(node.args[0], node))))


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(interpreter: Interpreter, node: fx.Node) -> Value:
    condition, a, b = interpreter.operands(node, 3)
    return interpreter.simplified(select(as_truth(condition), typed(a, node), typed(b, node)), node)


@rule(aten.masked_fill, aten.masked_fill_)
def _masked_fill(interpreter: Interpreter, node: fx.Node) -> Value:
    kept, mask, fill = interpreter.operands(node, 3)
    return interpreter.simplified(select(as_truth(mask), typed(fill, node), typed(kept, node)), node)


@rule(aten.tril, aten.triu, aten.tril_, aten.triu_)
def _triangle(interpreter: Interpreter, node: fx.Node) -> Value:
    """Elements on one side of a diagonal stay, the others become 0: tril keeps column - row <= diagonal."""
    lower = "tril" in str(node.target)
    diagonal = argument(node, 1, "diagonal", 0)
    diagonal = diagonal.meta["val"] if isinstance(diagonal, fx.Node) else diagonal
    above = Linear.of(Dim(-1)) - Linear.of(Dim(-2)) - size(diagonal)
    inside = interpreter.prover.compare(-above if lower else above, shape(node))
    zero = typed(Number(Linear(0)), node)
    return interpreter.simplified(
        select(inside, typed(interpreter.read(node.args[0], node), node), zero), node
    )
