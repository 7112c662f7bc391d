"""Integer values of a mask's subgraph: sums of index variables, symbolic sizes and tensor elements.

Every dimension of every tensor is counted from the right, as broadcasting counts: in the
scores (B, N, Q, K) the key index is ``Dim(-1)``, the query index ``Dim(-2)``. A value therefore
needs no renaming when its tensor is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx


@dataclass(frozen=True)
class Dim:
    """The index along dimension ``axis`` (negative: from the right)."""

    axis: int


@dataclass(frozen=True)
class Held:
    """The element ``node[index]`` of a tensor in the graph, read where ``node`` is defined."""

    node: fx.Node
    index: tuple[Linear, ...]


@dataclass(frozen=True)
class Floor:
    """``value // divisor``, rounded down; ``divisor`` is positive."""

    value: Linear
    divisor: int


@dataclass(frozen=True)
class Absolute:
    """``|value|``."""

    value: Linear


Atom: TypeAlias = "Dim | Held | Floor | Absolute | sympy.Expr"


@dataclass(frozen=True)
class Linear:
    """``const + sum(coefficient * atom)`` over the integers."""

    const: int = 0
    terms: frozenset[tuple[Atom, int]] = frozenset()

    @staticmethod
    def of(atom: Atom) -> Linear:
        return Linear(0, frozenset([(atom, 1)]))

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, atom: Atom) -> int:
        return next((c for a, c in self.terms if a == atom), 0)

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.const + other, self.terms)
        total = dict(self.terms)
        for atom, c in other.terms:
            total[atom] = total.get(atom, 0) + c
        return Linear(self.const + other.const, frozenset((a, c) for a, c in total.items() if c))

    def __mul__(self, factor: int) -> Linear:
        if factor == 0:
            return Linear()
        return Linear(self.const * factor, frozenset((a, c * factor) for a, c in self.terms))

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -other

    def substitute(self, dims: Mapping[int, Linear]) -> Linear:
        """Replace each ``Dim(axis)`` in ``dims``; the others stay as they are."""
        result = Linear(self.const)
        for atom, c in self.terms:
            result = result + _substituted(atom, dims) * c
        return result

    def dims(self) -> set[int]:
        """Axes of all index variables that the value depends on."""
        found: set[int] = set()
        for atom, _ in self.terms:
            if isinstance(atom, Dim):
                found.add(atom.axis)
            elif isinstance(atom, Held):
                found.update(*(i.dims() for i in atom.index))
            elif isinstance(atom, (Floor, Absolute)):
                found |= atom.value.dims()
        return found

    def split(self) -> tuple[dict[int, int], Linear]:
        """Coefficients of the plain index variables by axis, and the rest."""
        plain = {a.axis: c for a, c in self.terms if isinstance(a, Dim)}
        return plain, Linear(self.const, frozenset((a, c) for a, c in self.terms if not isinstance(a, Dim)))

    def __str__(self) -> str:
        parts = sorted((_name(a) if c == 1 else f"{c}*{_name(a)}") for a, c in self.terms)
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


def _substituted(atom: Atom, dims: Mapping[int, Linear]) -> Linear:
    if isinstance(atom, Dim):
        return dims.get(atom.axis, Linear.of(atom))
    if isinstance(atom, Held):
        return Linear.of(Held(atom.node, tuple(i.substitute(dims) for i in atom.index)))
    if isinstance(atom, Floor):
        return floor(atom.value.substitute(dims), atom.divisor)
    if isinstance(atom, Absolute):
        return absolute(atom.value.substitute(dims))
    return Linear.of(atom)


def floor(value: Linear, divisor: int) -> Linear:
    if value.is_const:
        return Linear(value.const // divisor)
    return value if divisor == 1 else Linear.of(Floor(value, divisor))


def absolute(value: Linear) -> Linear:
    return Linear(abs(value.const)) if value.is_const else Linear.of(Absolute(value))


def size(value: int | torch.SymInt) -> Linear:
    """A size, or another integer that shapes are computed from."""
    if isinstance(value, int):
        return Linear(value)
    return from_sympy(value.node.expr)


def from_sympy(expr: sympy.Expr) -> Linear:
    const, terms = 0, {}
    for term, c in sympy.expand(expr).as_coefficients_dict().items():
        if not c.is_integer:
            return Linear.of(expr)
        if term == 1:
            const = int(c)
        else:
            terms[term] = int(c)
    return Linear(const, frozenset(terms.items()))


_NAMES = {-1: "k", -2: "q", -3: "h", -4: "b"}


def _name(atom: Any) -> str:
    if isinstance(atom, Dim):
        return _NAMES.get(atom.axis, f"dim{atom.axis}")
    if isinstance(atom, Held):
        index = ",".join(map(str, atom.index))
        return f"{atom.node.name}[{index}]" if index else atom.node.name
    if isinstance(atom, Floor):
        return f"({atom.value})//{atom.divisor}"
    if isinstance(atom, Absolute):
        return f"|{atom.value}|"
    return str(atom)


def any_of(linears: Iterable[Linear], test: Callable[[Atom], bool]) -> bool:
    """Whether an atom anywhere inside ``linears`` passes ``test``."""
    return any(test(atom) or any_of(_inside(atom), test) for linear in linears for atom, _ in linear.terms)


def _inside(atom: Atom) -> tuple[Linear, ...]:
    if isinstance(atom, Held):
        return atom.index
    return (atom.value,) if isinstance(atom, (Floor, Absolute)) else ()
