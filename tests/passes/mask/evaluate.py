"""Evaluates a predicate on concrete values, to compare the algebra's claim with what a program computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from npu_compile.passes.mask.atoms import Predicate
from npu_compile.passes.mask.formula import And, Compare, Element, Equal, Formula
from npu_compile.passes.mask.linear import Absolute, Atom, Dim, Floor, Held, Linear


@dataclass(frozen=True)
class Evaluation:
    """``sizes`` are those of the scores (B, N, Q, K); ``nodes`` holds tensors, ``symbols`` symbolic sizes."""

    sizes: tuple[int, int, int, int]
    nodes: Mapping[fx.Node, Tensor]
    symbols: Mapping[Any, int]

    def keep(self, predicate: Predicate) -> Tensor:
        """bool (B, N, Q, K): where a key takes part."""
        return self.formula(predicate.formula).expand(self.sizes)

    def formula(self, formula: Formula) -> Tensor:
        if isinstance(formula, Compare):
            return self.linear(formula.linear) >= 0
        if isinstance(formula, Equal):
            return self.linear(formula.linear) == 0
        if isinstance(formula, Element):
            return self._element(formula.node, formula.index) ^ formula.negated
        join, unit = (torch.logical_and, True) if isinstance(formula, And) else (torch.logical_or, False)
        return reduce(join, map(self.formula, formula.parts), torch.full((1, 1, 1, 1), unit))

    def linear(self, linear: Linear) -> Tensor:
        terms = (self._atom(atom) * factor for atom, factor in linear.terms)
        return sum(terms, torch.full((1, 1, 1, 1), linear.const))

    def _atom(self, atom: Atom) -> Tensor:
        if isinstance(atom, Dim):
            shape = [1, 1, 1, 1]
            shape[atom.axis] = -1
            return torch.arange(self.sizes[atom.axis]).view(shape)
        if isinstance(atom, Held):
            return self._element(atom.node, atom.index).long()
        if isinstance(atom, Floor):
            return self.linear(atom.value).div(atom.divisor, rounding_mode="floor")
        if isinstance(atom, Absolute):
            return self.linear(atom.value).abs()
        return torch.tensor(int(sympy.sympify(atom).subs(dict(self.symbols))))

    def _element(self, node: fx.Node, index: tuple[Linear, ...]) -> Tensor:
        """An index may lie outside where another condition rules the element out."""
        tensor = self.nodes[node]
        places = [self.linear(i).clamp(0, n - 1) for i, n in zip(index, tensor.shape, strict=True)]
        return tensor[tuple(places)] if index else tensor
