"""What a ``score_mod`` does to a score before the softmax: a scale, a soft cap, then masks and biases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from npu_compile.passes.constant import constant
from npu_compile.passes.flex.scalar_program import returned
from npu_compile.passes.values import argument, aten, is_call, is_tensor, node_input, value

_WORKING = (torch.float32, torch.float64)
_COPIES = (aten.to, aten._to_copy, aten.clone, aten.alias, aten.detach)
_NONLINEAR = {aten.clamp.default: "the scores are clamped"}


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
    """``scale`` times the score, soft-capped, then ``terms``, in any order.

    ``softcap``: scaled scores s become softcap * tanh(s / softcap); None: they are not capped.
    """

    scale: float = 1.0
    terms: tuple[Term, ...] = ()
    softcap: float | None = None


def read_score_mod(program: fx.Graph) -> ScoreMod:
    """What the mod, whose first placeholder is the scaled score, does with it.

    Raises:
        NotFused: it does something else than scaling, soft-capping, masking with -inf and adding what doesn't
            depend on it, in this order.
    """
    score = next(iter(program.nodes))
    touched = _depending_on(score)
    node, scale, softcap, terms = returned(program), 1.0, None, []
    while node is not score:
        if node not in touched:
            raise NotFused("score_mod does not use the score")
        if is_call(node, aten.tanh):
            if softcap is not None:
                raise NotFused("score_mod soft-caps the scores (tanh) twice")
            softcap, scale, node = scale, 1.0, node_input(node)
            continue
        before, factor, term = _step(node, touched)
        if term is not None and softcap is not None:
            raise NotFused("score_mod soft-caps the scores (tanh) after it added a bias or a mask")
        if term is not None and scale != 1.0:
            raise NotFused("score_mod scales the scores after it added a bias or a mask")
        scale *= factor
        if term is not None:
            terms.append(term)
        node = before
    if softcap is None:
        return ScoreMod(scale, tuple(terms))
    if not 0 < softcap < math.inf or scale == 0:
        raise NotFused("score_mod soft-caps the scores (tanh) by a number that is not positive")
    # softcap * tanh(scale * s): the scores under the cap are scaled by both.
    return ScoreMod(scale * softcap, tuple(terms), softcap)


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
        yield from ((a, n, None) for a, b in (args[:2], args[1::-1]) if (n := constant(b)) is not None)
    elif is_call(node, aten.div.Tensor, aten.div.Scalar) and (n := constant(args[1])):
        yield args[0], 1 / n, None
    elif is_call(node, aten.where):
        if constant(args[2]) == -math.inf:
            yield args[1], 1.0, Term("keep", args[0])
        if constant(args[1]) == -math.inf:
            yield args[2], 1.0, Term("drop", args[0])
    elif is_call(node, aten.masked_fill) and constant(args[2]) == -math.inf:
        yield args[0], 1.0, Term("drop", args[1])
