"""What one element of a tensor is, as a function of its index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from npu_compile.passes.constant import rounded
from npu_compile.passes.mask import formula as logic
from npu_compile.passes.mask.formula import FALSE, TRUE, Formula, conjunction, disjunction
from npu_compile.passes.mask.linear import Held, Linear, any_of

MAX_CASES = 4
MAX_COMPLEXITY = 24


class Unknown(Exception):
    """The element isn't understood: its tensor is taken as it is."""


@dataclass(frozen=True)
class Number:
    """An integer."""

    linear: Linear


@dataclass(frozen=True)
class Truth:
    """A bool."""

    formula: Formula


@dataclass(frozen=True)
class Choice:
    """A number out of a few known ones; exactly one of the formulas is true at any index."""

    cases: tuple[tuple[float, Formula], ...]

    @staticmethod
    def const(number: float) -> Choice:
        return Choice(((number, TRUE),))

    @property
    def number(self) -> float | None:
        """The value where it is the same everywhere."""
        return self.cases[0][0] if len(self.cases) == 1 else None

    def map(self, function: Callable[[float], float]) -> Choice:
        return choice((function(number), where) for number, where in self.cases)

    def where(self, test: Callable[[float], bool]) -> Formula:
        """Where the value passes ``test``."""
        chosen = [where for number, where in self.cases if test(number)]
        return TRUE if len(chosen) == len(self.cases) else disjunction(chosen)


@dataclass(frozen=True)
class Sum:
    """A float that is the sum of these nodes, each broadcast; at least one isn't a :class:`Choice`."""

    nodes: tuple[fx.Node, ...]


Value: TypeAlias = "Number | Truth | Choice | Sum"


def choice(cases: Iterable[tuple[float, Formula]]) -> Choice:
    """Merge cases of equal value (and sign, and NaN) and drop impossible ones.

    Raises:
        Unknown: too many different values to be a mask.
    """
    merged: dict[str, tuple[float, list[Formula]]] = {}
    for number, where in cases:
        if where != FALSE:
            merged.setdefault(repr(number), (number, []))[1].append(where)
    if len(merged) > MAX_CASES:
        raise Unknown
    if len(merged) == 1:
        return Choice.const(next(iter(merged.values()))[0])
    return Choice(tuple((number, bounded(disjunction(wheres))) for number, wheres in merged.values()))


def bounded(formula: Formula) -> Formula:
    """``formula`` itself, if it is small enough to reason about.

    Raises:
        Unknown: it isn't.
    """
    if logic.complexity(formula) > MAX_COMPLEXITY:
        raise Unknown
    return formula


def combine(a: Choice, b: Choice, function: Callable[[float, float], float]) -> Choice:
    return choice((function(x, y), conjunction([p, q])) for x, p in a.cases for y, q in b.cases)


def select(condition: Formula, a: Value, b: Value) -> Value:
    """``where(condition, a, b)``."""
    if condition == TRUE or a == b:
        return a
    if condition == FALSE:
        return b
    a, b = _as_case(a), _as_case(b)
    if isinstance(a, Choice) and isinstance(b, Choice):
        no = logic.negation(condition)
        yes = [(x, conjunction([condition, p])) for x, p in a.cases]
        return choice(yes + [(y, conjunction([no, q])) for y, q in b.cases])
    if isinstance(a, Truth) and isinstance(b, Truth):
        p, q = a.formula, b.formula
        no = logic.negation(condition)
        return Truth(bounded(disjunction([conjunction([condition, p]), conjunction([no, q])])))
    raise Unknown


def _as_case(value: Value) -> Value:
    """An integer that is the same everywhere as the one case of a choice."""
    if isinstance(value, Number) and value.linear.is_const:
        return Choice.const(value.linear.const)
    return value


def transform(value: Value, function: Callable[[Linear], Linear]) -> Value:
    """Replace every integer value in it by ``function`` of it."""
    if isinstance(value, Number):
        return Number(function(value.linear))
    if isinstance(value, Truth):
        return Truth(logic.transform(value.formula, function))
    if isinstance(value, Choice):
        return Choice(tuple((number, logic.transform(where, function)) for number, where in value.cases))
    raise Unknown


def substitute(value: Value, dims: Mapping[int, Linear]) -> Value:
    """Replace index variables, as a view does."""
    return transform(value, lambda linear: linear.substitute(dims))


def dims(value: Value) -> set[int]:
    if isinstance(value, Number):
        return value.linear.dims()
    if isinstance(value, Truth):
        return logic.dims(value.formula)
    if isinstance(value, Choice):
        return set().union(*(logic.dims(where) for _, where in value.cases))
    raise Unknown


def holds_tensor(value: Value) -> bool:
    """Whether the value depends on elements of tensors, not on indices and sizes alone."""
    if isinstance(value, Sum):
        return True
    if isinstance(value, Number):
        return any_of([value.linear], lambda atom: isinstance(atom, Held))
    formulas = [value.formula] if isinstance(value, Truth) else [where for _, where in value.cases]
    return any(logic.holds_tensor(f) for f in formulas)


def as_truth(value: Value) -> Formula:
    """The value converted to bool."""
    if isinstance(value, Truth):
        return value.formula
    if isinstance(value, Choice):
        return value.where(bool)
    if isinstance(value, Number) and value.linear.is_const:
        return TRUE if value.linear.const else FALSE
    raise Unknown


def as_choice(value: Value, dtype: torch.dtype) -> Choice:
    """The value converted to a number of ``dtype``, rounded as the conversion rounds."""
    if isinstance(value, Truth):
        return choice([(1, value.formula), (0, logic.negation(value.formula))])
    if isinstance(value, Number) and value.linear.is_const:
        value = Choice.const(value.linear.const)
    if isinstance(value, Choice):
        return value.map(lambda number: _held(number, dtype))
    raise Unknown


def typed(found: Value, node: fx.Node) -> Value:
    """A value as an element of ``node``, whose dtype may differ."""
    kind = node.meta["val"].dtype
    if kind == torch.bool:
        return Truth(as_truth(found))
    if kind.is_floating_point or isinstance(found, (Choice, Truth)):
        return as_choice(found, kind)
    return found


def _held(number: float, dtype: torch.dtype) -> float:
    """``number`` as ``dtype`` holds it. Raises Unknown where it can't."""
    held = rounded(number, dtype)
    if held is None:
        raise Unknown
    return held
