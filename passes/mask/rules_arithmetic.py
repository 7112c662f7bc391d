"""Creation of constants, conversions and arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.passes.mask.formula import FALSE, TRUE
from npu_compile.passes.mask.interpret import Interpreter, arguments, own_index, rule
from npu_compile.passes.mask.linear import Linear, absolute
from npu_compile.passes.mask.values import (
    Choice,
    Number,
    Sum,
    Truth,
    Unknown,
    Value,
    as_choice,
    as_truth,
    combine,
    holds_tensor,
)
from npu_compile.passes.values import argument, aten, is_call, is_tensor, same, shape, value


@rule(aten.arange)
def _arange(interpreter: Interpreter, node: fx.Node) -> Value:
    if value(node).dtype.is_floating_point:
        raise Unknown
    started = node.target is not aten.arange.default
    first = _integer(interpreter, node.args[0], node) if started else Linear()
    stride = _integer(interpreter, node.args[2], node) if len(node.args) > 2 else Linear(1)
    if not stride.is_const:
        raise Unknown
    return Number(own_index(shape(node))[0] * stride.const + first)


def _integer(interpreter: Interpreter, argument_: Any, node: fx.Node) -> Linear:
    found = interpreter.read(argument_, node)
    if not isinstance(found, Number):
        raise Unknown
    return found.linear


@rule(aten.zeros, aten.zeros_like, aten.new_zeros, aten.zero_, aten.zero)
def _zeros(interpreter: Interpreter, node: fx.Node) -> Value:
    return constant(0, value(node).dtype)


@rule(aten.ones, aten.ones_like, aten.new_ones)
def _ones(interpreter: Interpreter, node: fx.Node) -> Value:
    return constant(1, value(node).dtype)


@rule(aten.full, aten.full_like, aten.new_full, aten.fill, aten.fill_, aten.scalar_tensor)
def _full(interpreter: Interpreter, node: fx.Node) -> Value:
    position = 2 if is_call(node, aten.new_full) else 0 if is_call(node, aten.scalar_tensor) else 1
    if len(node.args) <= position:
        raise Unknown
    fill = interpreter.read(node.args[position], node)
    kind = value(node).dtype
    if isinstance(fill, Number) and not kind.is_floating_point and kind != torch.bool:
        return fill
    return Truth(as_truth(fill)) if kind == torch.bool else as_choice(fill, kind)


def constant(number: int, kind: torch.dtype) -> Value:
    if kind == torch.bool:
        return Truth(TRUE if number else FALSE)
    return Choice.const(float(number)) if kind.is_floating_point else Number(Linear(number))


@rule(aten.to, aten._to_copy, aten.type_as, aten.copy_)
def _convert(interpreter: Interpreter, node: fx.Node) -> Value:
    source = arguments(node)[1 if is_call(node, aten.copy_) else 0]
    found = interpreter.read(source, node)
    old, new = value(source).dtype, value(node).dtype
    if new == torch.bool and not isinstance(found, Truth):
        return Truth(as_truth(found))
    if (isinstance(found, Truth) and new != torch.bool) or (isinstance(found, Choice) and old != new):
        return as_choice(found, new)
    if isinstance(found, Number) and new.is_floating_point:
        return as_choice(found, new)
    moves = value(source).device != value(node).device
    narrows = isinstance(found, Number) and not _fits(interpreter, found.linear, node)
    if narrows or (moves and holds_tensor(found)) or (isinstance(found, Sum) and old != new):
        raise Unknown
    return found


def _fits(interpreter: Interpreter, linear: Linear, node: fx.Node) -> bool:
    """Whether an integer conversion to the dtype of ``node`` keeps every value."""
    kind = value(node).dtype
    if kind == torch.int64:
        return True
    limits = torch.iinfo(kind)
    bounds = (linear - limits.min, -linear + limits.max)
    return all(interpreter.prover.nonnegative(bound, shape(node)) for bound in bounds)


def _binary(targets: tuple[Any, ...], function: Callable[[Any, Any], Any], reverse: bool = False) -> None:
    """Register ``function``, which works on two integers or on two known numbers."""

    @rule(*targets)
    def compute(interpreter: Interpreter, node: fx.Node) -> Value:
        if argument(node, 2, "alpha", 1) != 1:
            raise Unknown
        a, b = interpreter.operands(node, 2)
        a, b = (b, a) if reverse else (a, b)
        kind = value(node).dtype
        if isinstance(a, Number) and isinstance(b, Number) and kind in (torch.int64, torch.int32):
            return Number(function(a.linear, b.linear))
        if isinstance(a, Sum) or isinstance(b, Sum):
            return _sum(node, function)
        a, b = as_choice(a, kind), as_choice(b, kind)
        return interpreter.simplified(as_choice(combine(a, b, function), kind), node)


def _sum(node: fx.Node, function: Callable[[Any, Any], Any]) -> Value:
    terms = arguments(node)[:2]
    same_kind = all(is_tensor(x) and value(x).dtype == value(node).dtype for x in terms)
    if function is not operator.add or not same_kind:
        raise Unknown
    return Sum(terms)


def _product(a: Any, b: Any) -> Any:
    if isinstance(a, Linear) and isinstance(b, Linear):
        a, b = (b, a) if a.is_const else (a, b)
        if not b.is_const:
            raise Unknown
        return a * b.const
    return a * b


_binary((aten.add.Tensor, aten.add.Scalar, aten.add_.Tensor, aten.add_.Scalar), operator.add)
_binary((aten.sub.Tensor, aten.sub.Scalar, aten.sub_.Tensor, aten.sub_.Scalar), operator.sub)
_binary((aten.rsub.Tensor, aten.rsub.Scalar), operator.sub, reverse=True)
_binary((aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar), _product)


@rule(aten.maximum.default, aten.max.other)
def _maximum(interpreter: Interpreter, node: fx.Node) -> Value:
    """The larger of known numbers, such as a sum of two masks cut off at the smallest float."""
    kind = value(node).dtype
    a, b = (as_choice(x, kind) for x in interpreter.operands(node, 2))
    return interpreter.simplified(combine(a, b, _larger), node)


def _larger(a: float, b: float) -> float:
    return a if a != a or a > b else b


@rule(aten.clamp.default, aten.clamp_min.default)
def _clamp(interpreter: Interpreter, node: fx.Node) -> Value:
    least = argument(node, 1, "min", None)
    if argument(node, 2, "max", None) is not None or least is None:
        raise Unknown
    kind = value(node).dtype
    found, bound = (
        as_choice(interpreter.read(node.args[0], node), kind),
        as_choice(interpreter.read(least, node), kind),
    )
    return combine(found, bound, _larger)


@rule(aten.neg.default, aten.neg_.default)
def _negative(interpreter: Interpreter, node: fx.Node) -> Value:
    found = interpreter.read(node.args[0], node)
    if isinstance(found, Number):
        return Number(-found.linear)
    return as_choice(found, value(node).dtype).map(operator.neg)


@rule(aten.log.default)
def _log(interpreter: Interpreter, node: fx.Node) -> Value:
    """The logarithm of a mask of ones and zeros is 0 and -inf."""
    found = as_choice(interpreter.read(node.args[0], node), value(node).dtype)
    return as_choice(found.map(_logarithm), value(node).dtype)


def _logarithm(number: float) -> float:
    return math.log(number) if number > 0 else -math.inf if number == 0 else math.nan


@rule(aten.abs.default, aten.abs_.default)
def _abs(interpreter: Interpreter, node: fx.Node) -> Value:
    found = interpreter.read(node.args[0], node)
    if isinstance(found, Number):
        return Number(absolute(found.linear))
    return as_choice(found, value(node).dtype).map(abs)


@rule(aten.floor_divide, aten.div.Tensor_mode, aten.div.Scalar_mode)
def _floor_divide(interpreter: Interpreter, node: fx.Node) -> Value:
    a, b = interpreter.operands(node, 2)
    if is_call(node, aten.div) and node.kwargs.get("rounding_mode") != "floor":
        raise Unknown
    if not (isinstance(a, Number) and isinstance(b, Number) and b.linear.is_const and b.linear.const > 0):
        raise Unknown
    return Number(interpreter.prover.divided(a.linear, b.linear.const, shape(node)))


@rule(aten.diff.default)
def _diff(interpreter: Interpreter, node: fx.Node) -> Value:
    """First differences, where they are the same number everywhere."""
    axis = argument(node, 2, "dim", -1)
    rank = len(shape(node))
    axis = axis - rank if axis >= 0 else axis
    prepended = argument(node, 3, "prepend", None)
    if argument(node, 1, "n", 1) != 1 or argument(node, 4, "append", None) is not None:
        raise Unknown
    index = own_index(shape(arguments(node)[0]))[axis]
    current = _integer(interpreter, node.args[0], node)
    steps = [current - current.substitute({axis: index - 1})]
    if prepended is not None:
        if not same(shape(prepended)[axis], 1):
            raise Unknown
        steps.append(current.substitute({axis: Linear()}) - _integer(interpreter, prepended, node))
    if not all(step.is_const and step == steps[0] for step in steps):
        raise Unknown
    return Number(steps[0])


@rule(aten.cumsum.default)
def _cumsum(interpreter: Interpreter, node: fx.Node) -> Value:
    """Running sums of zeros."""
    found = interpreter.read(node.args[0], node)
    if as_choice(found, value(node).dtype).number != 0:
        raise Unknown
    return constant(0, value(node).dtype)
