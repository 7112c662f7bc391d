"""Masks that let a token see its own segment only, where segments follow each other without a gap.

Two formulas prove that: equal chunk numbers, ``q // C == k // C``, and equal segment numbers that are
running sums of a bool ("a segment starts here") and so never fall. Numbers that the program is given
could come back to a value they have had, and prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from npu_compile.passes.mask.atoms import B, Causal, Explicit, K, Predicate, Q, SameBlock, Window
from npu_compile.passes.mask.formula import Compare
from npu_compile.passes.mask.linear import Dim, Floor, Held, Linear
from npu_compile.passes.mask.meaning import MaskMeaning
from npu_compile.passes.site import ScoreShape
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    node_input,
    same,
    same_shape,
    same_value_input,
    shape,
    value,
)


@dataclass(frozen=True)
class Chunks:
    """Segments of ``size`` tokens; the first has ``shift`` fewer."""

    size: int
    shift: int


@dataclass(frozen=True)
class Numbered:
    """Segments by their numbers, (B or 1, S): never falling along S."""

    numbers: fx.Node


Segments: TypeAlias = "Chunks | Numbered"


@dataclass(frozen=True)
class Segmented:
    """A token sees its segment: all of it, what is not after it (``causal``), or its last ``window`` keys."""

    segments: Segments
    causal: bool = False
    window: int | None = None


def segmented(meaning: MaskMeaning, scores: ScoreShape) -> Segmented | None:
    """What ``meaning`` is, if it is that and no more, for queries and keys of the same tokens; or None."""
    blocks = [atom for atom in meaning.keep.atoms if isinstance(atom, SameBlock)]
    plain = not (meaning.bias or meaning.at_run_time or meaning.by_head)
    if len(blocks) != 1 or not plain or not same(scores.query, scores.key):
        return None
    segments = _chunks(blocks[0].difference) or _numbered(blocks[0].difference)
    if segments is None:
        return None
    found = Segmented(segments)
    for atom in meaning.keep.atoms:
        if isinstance(atom, Explicit) and isinstance(segments, Numbered):
            atom = _by_index(atom, segments.numbers)
        match atom:
            case SameBlock():
                continue
            case Causal(offset) if offset == Linear() and not found.causal:
                found = Segmented(segments, True, found.window)
            case Window(start) if start.is_const and start.const <= 0 and found.window is None:
                found = Segmented(segments, found.causal, 1 - start.const)
            case _:
                return None
    return None if found.window is not None and not found.causal else found


def _two(difference: Linear) -> tuple[Any, Any] | None:
    """a and b of a difference a - b."""
    signs = {c: atom for atom, c in difference.terms}
    if difference.const or len(difference.terms) != 2 or set(signs) != {1, -1}:
        return None
    return signs[1], signs[-1]


def _chunks(difference: Linear) -> Chunks | None:
    match _two(difference):
        case (Floor(a, size), Floor(b, other)) if size == other:
            for one, two in ((a, b), (b, a)):
                shift = one - Linear.of(K)
                if shift.is_const and two == Linear.of(Q) + shift:
                    return Chunks(size, shift.const % size)
    return None


def _numbered(difference: Linear) -> Numbered | None:
    match _two(difference):
        case (Held(node, first), Held(other, second)) if node is other and len(first) == len(second) == 2:
            batched = first[0] == second[0] and first[0] in (Linear(), Linear.of(B))
            along = {first[1], second[1]} == {Linear.of(K), Linear.of(Q)}
            if batched and along and _starts(node) is not None:
                return Numbered(node)
    return None


def _starts(numbers: fx.Node) -> fx.Node | None:
    """The bool tensor whose running sums along the last dimension ``numbers`` are, or None."""
    while (source := same_value_input(numbers)) is not None:
        numbers = source
    if not is_call(numbers, aten.cumsum.default) or numbers.args[1] not in (-1, value(numbers).ndim - 1):
        return None
    starts = node_input(numbers)
    exact = value(numbers).dtype == torch.int64
    return starts if exact and value(starts).dtype == torch.bool else None


def _by_index(atom: Explicit, numbers: fx.Node) -> Any:
    """``atom`` over q and k, where it compares positions and a segment ends wherever they don't go up by 1.

    Inside of such a segment the distance of two tokens is the difference of their positions.
    """
    positions = _restarted(numbers)
    if positions is None or not isinstance(atom.formula, Compare):
        return atom
    linear = Linear(atom.formula.linear.const)
    for term, factor in atom.formula.linear.terms:
        along = _position(term, positions)
        linear = linear + Linear.of(term if along is None else along) * factor
    plain, _ = linear.split()
    # Only differences of positions are distances: q and k must come with opposite signs.
    if plain.get(K.axis, 0) + plain.get(Q.axis, 0) != 0:
        return atom
    (simpler,) = Predicate.of(Compare(linear)).atoms
    return simpler


def _position(term: Any, positions: fx.Node) -> Dim | None:
    """q or k, where ``term`` is the position of that token."""
    if not isinstance(term, Held) or _root(term.node) is not positions or len(term.index) != 2:
        return None
    own_row = term.index[0] == Linear.of(B) or same(shape(positions)[0], 1)
    along = [token for token in (K, Q) if term.index[1] == Linear.of(token)]
    return along[0] if own_row and along else None


def _restarted(numbers: fx.Node) -> fx.Node | None:
    """The positions p of ``numbers = cumsum(diff(p, prepend=...) != 1)``, or None."""
    starts = _starts(numbers)
    if not is_call(starts, aten.ne.Scalar) or starts.args[1] != 1:
        return None
    steps = node_input(starts)
    if not is_call(steps, aten.diff.default) or not same_shape(shape(steps), shape(node_input(steps))):
        return None
    last = argument(steps, 2, "dim", -1) in (-1, len(shape(steps)) - 1)
    # Of one more number in front or behind, only the one in front leaves the others where they are.
    plain = argument(steps, 1, "n", 1) == 1 and argument(steps, 4, "append") is None
    return _root(node_input(steps)) if last and plain else None


def _root(node: fx.Node) -> fx.Node:
    """What ``node`` is a copy or an expansion over the batch of."""
    while is_call(node, aten.expand.default) or same_value_input(node) is not None:
        node = node_input(node)
    return node
