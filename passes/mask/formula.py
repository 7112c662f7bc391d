"""Truth values of a mask's subgraph: comparisons of integers, elements of bool tensors, and/or/not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from npu_compile.passes.mask.linear import Held, Linear, any_of


@dataclass(frozen=True)
class Compare:
    """``linear >= 0``."""

    linear: Linear


@dataclass(frozen=True)
class Equal:
    """``linear == 0``."""

    linear: Linear


@dataclass(frozen=True)
class Element:
    """The bool element ``node[index]``, or its negation."""

    node: fx.Node
    index: tuple[Linear, ...]
    negated: bool = False


@dataclass(frozen=True)
class And:
    parts: tuple[Formula, ...] = ()


@dataclass(frozen=True)
class Or:
    parts: tuple[Formula, ...] = ()


Formula: TypeAlias = "Compare | Equal | Element | And | Or"

TRUE = And()
FALSE = Or()


def conjunction(parts: Iterable[Formula]) -> Formula:
    return _combine(parts, And, TRUE, FALSE)


def disjunction(parts: Iterable[Formula]) -> Formula:
    return _combine(parts, Or, FALSE, TRUE)


def _combine(parts: Iterable[Formula], kind: type[And] | type[Or], unit: Formula, zero: Formula) -> Formula:
    found: dict[Formula, None] = {}
    for part in parts:
        if part == zero:
            return zero
        for one in part.parts if isinstance(part, kind) else (part,):
            found[one] = None
    if len(found) == 1:
        return next(iter(found))
    return kind(tuple(found)) if found else unit


def negation(formula: Formula) -> Formula:
    if isinstance(formula, Compare):
        return Compare(-formula.linear - 1)
    if isinstance(formula, Equal):
        return disjunction([Compare(formula.linear - 1), Compare(-formula.linear - 1)])
    if isinstance(formula, Element):
        return Element(formula.node, formula.index, not formula.negated)
    inner = [negation(p) for p in formula.parts]
    return disjunction(inner) if isinstance(formula, And) else conjunction(inner)


def transform(formula: Formula, function: Callable[[Linear], Linear]) -> Formula:
    """Replace every integer value in ``formula`` by ``function`` of it."""
    if isinstance(formula, (Compare, Equal)):
        return type(formula)(function(formula.linear))
    if isinstance(formula, Element):
        return Element(formula.node, tuple(map(function, formula.index)), formula.negated)
    inner = [transform(part, function) for part in formula.parts]
    return conjunction(inner) if isinstance(formula, And) else disjunction(inner)


def substitute(formula: Formula, dims: Mapping[int, Linear]) -> Formula:
    """Replace index variables; see :meth:`Linear.substitute`."""
    return transform(formula, lambda linear: linear.substitute(dims))


def dims(formula: Formula) -> set[int]:
    """Axes of all index variables that the truth depends on."""
    if isinstance(formula, (Compare, Equal)):
        return formula.linear.dims()
    if isinstance(formula, Element):
        return set().union(*(i.dims() for i in formula.index))
    return set().union(*(dims(p) for p in formula.parts))


def holds_tensor(formula: Formula) -> bool:
    """Whether the truth depends on elements of tensors."""
    if isinstance(formula, (And, Or)):
        return any(holds_tensor(part) for part in formula.parts)
    return isinstance(formula, Element) or any_of([formula.linear], lambda atom: isinstance(atom, Held))


def complexity(formula: Formula) -> int:
    return sum(complexity(p) for p in formula.parts) if isinstance(formula, (And, Or)) else 1
