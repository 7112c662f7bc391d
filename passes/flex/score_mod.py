"""What a ``score_mod`` does to a score before the softmax, where that is a scale, masks and biases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from npu_compile.passes.flex.scalar_program import returned
from npu_compile.passes.values import argument, aten, is_call, is_tensor, value

_WORKING = (torch.float32, torch.float64)
_COPIES = (aten.to, aten._to_copy, aten.clone, aten.alias, aten.detach)
_NONLINEAR = {
    aten.tanh.default: "the scores are soft-capped (tanh), which the fused operator does not do",
    aten.clamp.default: "the scores are clamped",
}


class NotFused(ValueError):
    """The mod has no place in a fused operator; the message says why."""


@dataclass(frozen=True)
class Term:
    """``keep`` and ``drop``: a bool node of the mod; elsewhere, or there, the score is minus infinity.

    ``add`` and ``subtract``: a float node.
    """

    kind: Literal["keep", "drop", "add", "subtract"]
    node: fx.Node


@dataclass(frozen=True)
class ScoreMod:
    """``scale`` times the score, then ``terms``, in any order."""

    scale: float = 1.0
    terms: tuple[Term, ...] = ()


def read_score_mod(program: fx.Graph) -> ScoreMod:
    """What the mod, whose first placeholder is the scaled score, does with it.

    Raises:
        NotFused: it does something else than scaling, masking with -inf and adding what doesn't depend on it.
    """
    score = next(iter(program.nodes))
    touched = _depending_on(score)
    node, scale, terms = returned(program), 1.0, []
    while node is not score:
        if node not in touched:
            raise NotFused("score_mod does not use the score")
        before, factor, term = _step(node, touched)
        if scale != 1.0 and term is not None:
            raise NotFused("score_mod scales the scores after it added a bias or a mask")
        scale *= factor
        if term is not None:
            terms.append(term)
        node = before
    return ScoreMod(scale, tuple(terms))


def _depending_on(score: fx.Node) -> set[fx.Node]:
    found = {score}
    for node in score.graph.nodes:
        if any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


def _step(node: fx.Node, touched: set[fx.Node]) -> tuple[fx.Node, float, Term | None]:
    """The score before ``node``, what it is multiplied by, and the term that joins it."""
    for before, factor, term in _readings(node):
        others = term.node if term is not None else None
        if before in touched and others not in touched:
            return before, factor, term
    target: Any = node.target
    raise NotFused(_NONLINEAR.get(target, f"score_mod applies {target} to the scores"))


def _readings(node: fx.Node) -> Iterator[tuple[Any, float, Term | None]]:
    args: Any = node.args
    if is_call(node, *_COPIES) and value(node).dtype in _WORKING:
        yield args[0], 1.0, None
    elif is_call(node, aten.add.Tensor) and argument(node, 2, "alpha", 1) == 1:
        yield from ((a, 1.0, Term("add", b)) for a, b in (args[:2], args[1::-1]) if is_tensor(b))
    elif is_call(node, aten.sub.Tensor) and argument(node, 2, "alpha", 1) == 1 and is_tensor(args[1]):
        yield args[0], 1.0, Term("subtract", args[1])
    elif is_call(node, aten.mul):
        yield from ((a, n, None) for a, b in (args[:2], args[1::-1]) if (n := _number(b)) is not None)
    elif is_call(node, aten.div.Tensor, aten.div.Scalar) and (n := _number(args[1])):
        yield args[0], 1 / n, None
    elif is_call(node, aten.where):
        if _number(args[2]) == -math.inf:
            yield args[1], 1.0, Term("keep", args[0])
        if _number(args[1]) == -math.inf:
            yield args[2], 1.0, Term("drop", args[0])
    elif is_call(node, aten.masked_fill) and _number(args[2]) == -math.inf:
        yield args[0], 1.0, Term("drop", args[1])


def _number(given: Any) -> float | None:
    """A number known when compiling: written as one, or as a 0-d tensor made of one."""
    if isinstance(given, (int, float)):
        return float(given)
    if is_call(given, *_COPIES, aten.lift_fresh_copy, aten.lift_fresh, aten.scalar_tensor):
        return _number(given.args[0])
    if is_call(given, aten.full.default, aten.full_like.default, aten.new_full.default):
        return _number(given.args[2 if is_call(given, aten.new_full) else 1])
    if isinstance(given, fx.Node) and given.op == "get_attr":
        held = getattr(given.graph.owning_module, str(given.target), None)
        held = held.constant if isinstance(held, FakeTensor) else held
        if isinstance(held, torch.Tensor) and held.numel() == 1:
            with unset_fake_temporarily():
                return float(held.item())
    return None
