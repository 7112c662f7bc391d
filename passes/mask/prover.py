"""What is known for certain about integer values, from tensor sizes, shape guards and the program itself.

Nothing is ever read from example data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from npu_compile.passes.mask.formula import (
    FALSE,
    TRUE,
    And,
    Compare,
    Equal,
    Formula,
    Or,
    conjunction,
    disjunction,
    negation,
)
from npu_compile.passes.mask.linear import Absolute, Dim, Floor, Held, Linear, any_of, floor, size

Shape = Sequence[Any]
"""Sizes of a tensor, each an ``int`` or a ``torch.SymInt``."""


class Prover:
    """Decides comparisons over all index values of a shape, where they are the same for all of them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._shape_env = _shape_env(graph)
        self._facts: list[Linear] = []
        self._known: dict[Linear, bool] = {}
        self._ranges: dict[sympy.Expr, tuple[float, float]] = {}

    def assume(self, linear: Linear) -> None:
        """Record that ``linear >= 0`` in every run that doesn't fail."""
        self._facts.append(linear)
        self._known.clear()

    def nonnegative(self, linear: Linear, shape: Shape = ()) -> bool:
        """Whether ``linear >= 0`` is certain for every index of ``shape``."""
        least = self._least(linear, shape)
        if least.is_const:
            return least.const >= 0
        known = self._known.get(least)
        if known is None:
            known = self._known[least] = self._symbolic(least) or self._from_facts(least)
        return known

    def compare(self, linear: Linear, shape: Shape) -> Formula:
        """``linear >= 0`` as a formula, decided if it is the same for every index of ``shape``."""
        if self.nonnegative(linear, shape):
            return TRUE
        if self.nonnegative(-linear - 1, shape):
            return FALSE
        for atom, c in linear.terms:
            if isinstance(atom, Absolute) and c == -1:
                rest = linear + Linear.of(atom)
                return conjunction([self.compare(rest - v, shape) for v in (atom.value, -atom.value)])
        return Compare(linear)

    def equal(self, linear: Linear, shape: Shape) -> Formula:
        """``linear == 0`` as a formula."""
        if linear.is_const:
            return TRUE if linear.const == 0 else FALSE
        if self.nonnegative(linear - 1, shape) or self.nonnegative(-linear - 1, shape):
            return FALSE
        return Equal(linear)

    def divided(self, value: Linear, divisor: int, shape: Shape) -> Linear:
        """``value // divisor``, with what is divisible taken out."""
        whole = frozenset((atom, c // divisor) for atom, c in value.terms if c % divisor == 0)
        rest = Linear(value.const % divisor, frozenset((a, c) for a, c in value.terms if c % divisor))
        quotient = Linear(value.const // divisor, whole)
        if self.nonnegative(rest, shape) and self.nonnegative(-rest + (divisor - 1), shape):
            return quotient
        return quotient + floor(rest, divisor)

    def tidied(self, linear: Linear, shape: Shape) -> Linear:
        """``linear`` with its divisions done where they come out even."""
        result = Linear(linear.const)
        for atom, c in linear.terms:
            if isinstance(atom, Floor):
                result = result + self.divided(self.tidied(atom.value, shape), atom.divisor, shape) * c
            else:
                result = result + Linear.of(atom) * c
        return result

    def implies(self, given: Formula, then: Formula, shape: Shape) -> bool:
        """Whether ``then`` holds wherever ``given`` does; False means not proved."""
        if given == then:
            return True
        if isinstance(given, Compare) and isinstance(then, Compare):
            return self.nonnegative(then.linear - given.linear, shape)
        return False

    def simplify(self, formula: Formula, shape: Shape) -> Formula:
        """An equal formula without the parts that the other parts make redundant."""
        if isinstance(formula, Or):
            return negation(self.simplify(negation(formula), shape))
        if not isinstance(formula, And):
            return formula
        parts = [self.simplify(part, shape) for part in formula.parts]
        for i, part in enumerate(parts):
            others = parts[:i] + parts[i + 1 :]
            if isinstance(part, Or):
                part = disjunction(p for p in part.parts if not self._excluded(p, others, shape))
            if self._excluded(part, others, shape):
                return FALSE
            redundant = any(self.implies(other, part, shape) for other in others)
            parts[i] = TRUE if redundant else part
        return conjunction(parts)

    def _excluded(self, part: Formula, given: Sequence[Formula], shape: Shape) -> bool:
        opposite = negation(part)
        return any(self.implies(other, opposite, shape) for other in given)

    def _least(self, linear: Linear, shape: Shape) -> Linear:
        """A lower bound of ``linear`` over all indices, free of index variables where possible."""
        least = Linear(linear.const)
        for atom, c in linear.terms:
            if isinstance(atom, Dim):
                if c < 0 and -atom.axis <= len(shape):
                    least = least + (size(shape[atom.axis]) - 1) * c
                elif c < 0:
                    least = least + Linear.of(atom) * c
            elif isinstance(atom, Absolute) and c > 0:
                continue
            elif isinstance(atom, Floor) and c > 0 and (bound := self._least(atom.value, shape)).is_const:
                least = least + (bound.const // atom.divisor) * c
            elif isinstance(atom, Floor) and c < 0 and (bound := self._least(-atom.value, shape)).is_const:
                least = least + (-bound.const // atom.divisor) * c
            else:
                least = least + Linear.of(atom) * c
        return least

    def _symbolic(self, linear: Linear) -> bool:
        """Whether guards and ranges of symbolic sizes prove ``linear >= 0``."""
        env = self._shape_env
        symbols = {atom: c for atom, c in linear.terms if isinstance(atom, sympy.Expr)}
        if env is None or len(symbols) < len(linear.terms):
            return False
        if linear.const + sum(self._bound(atom, c) for atom, c in symbols.items()) >= 0:
            return True
        expr = sum((atom * c for atom, c in symbols.items()), sympy.Integer(linear.const))
        if _fails_on_examples(expr, env):
            return False
        return env._maybe_evaluate_static(sympy.Ge(expr, 0)) == sympy.true

    def _bound(self, atom: sympy.Expr, coefficient: int) -> float:
        """A lower bound of ``coefficient * atom``."""
        found = self._ranges.get(atom)
        if found is None:
            limits = self._shape_env.bound_sympy(atom)
            found = self._ranges[atom] = (float(limits.lower), float(limits.upper))
        return coefficient * found[0 if coefficient > 0 else 1]

    def _from_facts(self, linear: Linear) -> bool:
        if not any_of([linear], lambda atom: isinstance(atom, Held)):
            return False
        rests = (linear - fact for fact in self._facts)
        return any(r.const >= 0 if r.is_const else self._symbolic(r) for r in rests)


def _shape_env(graph: fx.Graph) -> Any:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if isinstance(value, torch.Tensor):
            for dim in value.shape:
                if isinstance(dim, torch.SymInt):
                    return dim.node.shape_env
    return None


def _fails_on_examples(expr: sympy.Expr, env: Any) -> bool:
    """Whether ``expr >= 0`` is false for the sizes of the trace: then there is nothing to prove.

    They never count in favour of a proof. Older torch names them ``var_to_val``.
    """
    sizes = env.backed_var_to_val if hasattr(env, "backed_var_to_val") else env.var_to_val
    example = expr.xreplace(sizes)
    return bool(example.is_number and example < 0)
