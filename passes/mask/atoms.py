"""The mask as a predicate over batch b, head h, query row q and key k: a conjunction of atoms.

A key takes part where all atoms hold. Offsets and lengths are integers, symbolic sizes or values
held in tensors of the graph (:class:`~npu_compile.passes.mask.linear.Linear`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import fx

from npu_compile.passes.mask import formula as logic
from npu_compile.passes.mask.formula import And, Compare, Element, Equal, Formula, Or
from npu_compile.passes.mask.linear import Dim, Floor, Linear
from npu_compile.passes.values import aten, is_call, is_tensor

K, Q, H, B = (Dim(axis) for axis in (-1, -2, -3, -4))
_K, _Q = Linear.of(K), Linear.of(Q)


@dataclass(frozen=True)
class Causal:
    """``k <= q + offset``: aligned at the top left for 0, at the bottom right for key - query length."""

    offset: Linear

    @property
    def formula(self) -> Formula:
        return Compare(_Q + self.offset - _K)

    @property
    def words(self) -> str:
        return "causal" if self.offset == Linear() else f"causal from position {self.offset}"


@dataclass(frozen=True)
class Window:
    """``k >= q + start``: a window of W keys that ends at key ``q + offset`` starts at ``offset - W + 1``."""

    start: Linear

    @property
    def formula(self) -> Formula:
        return Compare(_K - _Q - self.start)

    @property
    def words(self) -> str:
        return f"keys from q + ({self.start})"


@dataclass(frozen=True)
class KeyBefore:
    """``k < length``; ``length`` may differ per batch element."""

    length: Linear

    @property
    def formula(self) -> Formula:
        return Compare(self.length - 1 - _K)

    @property
    def words(self) -> str:
        return f"keys below {self.length}"


@dataclass(frozen=True)
class KeyFrom:
    """``k >= start``; ``start`` may differ per batch element."""

    start: Linear

    @property
    def formula(self) -> Formula:
        return Compare(_K - self.start)

    @property
    def words(self) -> str:
        return f"keys from {self.start}"


@dataclass(frozen=True)
class Padding:
    """A bool tensor says which keys take part, for all query rows: ``element`` is indexed by b and k."""

    element: Element

    @property
    def formula(self) -> Formula:
        return self.element

    @property
    def words(self) -> str:
        return f"padding mask {origin(self.element.node)}"


@dataclass(frozen=True)
class SameBlock:
    """Query and key are in the same block: a chunk of fixed size, or equal block numbers."""

    difference: Linear

    @property
    def formula(self) -> Formula:
        return Equal(self.difference)

    @property
    def words(self) -> str:
        sizes = [atom.divisor for atom, _ in self.difference.terms if isinstance(atom, Floor)]
        return f"same chunk of {sizes[0]}" if sizes else "same block"


@dataclass(frozen=True)
class Explicit:
    """Anything else: known exactly, or a bool tensor that is taken as it is."""

    formula: Formula

    @property
    def words(self) -> str:
        if isinstance(self.formula, Element):
            return f"explicit mask from {origin(self.formula.node)}"
        return "explicit mask"


@dataclass(frozen=True)
class AnyOf:
    """At least one of the predicates holds."""

    alternatives: tuple[Predicate, ...]

    @property
    def formula(self) -> Formula:
        return logic.disjunction(p.formula for p in self.alternatives)

    @property
    def words(self) -> str:
        return " or ".join(f"({p.words})" for p in self.alternatives)


Atom: TypeAlias = "Causal | Window | KeyBefore | KeyFrom | Padding | SameBlock | Explicit | AnyOf"


@dataclass(frozen=True)
class Predicate:
    """All ``atoms`` hold; no atoms: every key takes part."""

    atoms: tuple[Atom, ...] = ()

    @property
    def formula(self) -> Formula:
        return logic.conjunction(atom.formula for atom in self.atoms)

    @property
    def words(self) -> str:
        if not self.atoms:
            return "all keys"
        match self.atoms:
            case (Causal() as causal, Window() as window, *others):
                return ", ".join([_band_words(causal, window), *(atom.words for atom in others)])
        return ", ".join(atom.words for atom in self.atoms)

    def key_bounds(self, key: Linear) -> tuple[list[Linear], list[Linear]] | None:
        """First and last keys that each atom allows a row, over q and b; None if they aren't a band."""
        row, lowest, highest = Linear.of(Q), [Linear()], [key - 1]
        for atom in self.atoms:
            match atom:
                case Causal(offset):
                    highest.append(row + offset)
                case Window(start):
                    lowest.append(row + start)
                case KeyBefore(length):
                    highest.append(length - 1)
                case KeyFrom(start):
                    lowest.append(start)
                case _:
                    return None
        return lowest, highest

    @staticmethod
    def of(formula: Formula) -> Predicate:
        parts = formula.parts if isinstance(formula, And) else (formula,)
        return Predicate(tuple(sorted((_atom(p) for p in parts), key=_order)))


def _band_words(causal: Causal, window: Window) -> str:
    width = causal.offset - window.start + 1
    if causal.offset.const > 0 and causal.offset + window.start == Linear():
        return f"keys within {causal.offset} of the query"
    return f"{causal.words}, window {width}"


def _order(atom: Atom) -> int:
    return [Causal, Window, KeyBefore, KeyFrom, Padding, SameBlock, AnyOf, Explicit].index(type(atom))


def _atom(formula: Formula) -> Atom:
    if isinstance(formula, Compare):
        return _comparison(formula)
    if isinstance(formula, Equal):
        return SameBlock(formula.linear) if {-1, -2} <= formula.linear.dims() else Explicit(formula)
    if isinstance(formula, Element):
        return Padding(formula) if {-1} <= logic.dims(formula) <= {-1, -4} else Explicit(formula)
    if isinstance(formula, Or) and formula.parts:
        return AnyOf(tuple(Predicate.of(part) for part in formula.parts))
    return Explicit(formula)


def _comparison(formula: Compare) -> Atom:
    plain, rest = formula.linear.split()
    k, q = plain.pop(-1, 0), plain.pop(-2, 0)
    if not plain and rest.dims() <= {-4}:
        if (k, q) == (-1, 1):
            return Causal(rest)
        if (k, q) == (1, -1):
            return Window(-rest)
        if (k, q) == (-1, 0):
            return KeyBefore(rest + 1)
        if (k, q) == (1, 0):
            return KeyFrom(-rest)
    return Explicit(formula)


def origin(node: fx.Node) -> str:
    """Where a tensor comes from, in words: the graph's input it is a view or a copy of, or its own name."""
    source: Any = node
    while source.op == "call_function" and source.args and is_tensor(source.args[0]) and _renames(source):
        source = source.args[0]
    return f"input {source.name}" if source.op == "placeholder" else node.name


def _renames(node: fx.Node) -> bool:
    views = (aten.expand, aten.unsqueeze, aten.slice, aten.view, aten.reshape, aten.pad, aten.index)
    return is_call(node, *views, aten.to, aten._to_copy, aten.clone, aten.contiguous, aten.eq, aten.ne)
