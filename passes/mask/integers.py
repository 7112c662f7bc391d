"""Emits integer values of a mask (lengths, offsets) as numbers and tensors of the graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any

import sympy
import torch
from torch import fx

from npu_compile.passes.mask.atoms import B, Q
from npu_compile.passes.mask.linear import Atom, Held, Linear, from_sympy
from npu_compile.passes.mask.writer import Writer
from npu_compile.passes.values import aten, is_tensor, shape, value


class Integers:
    """Emission of :class:`Linear` values; symbolic sizes are taken from nodes that hold them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._symbols: dict[sympy.Expr, fx.Node] | None = None
        self._numbers: dict[Linear, int | fx.Node] = {}

    def number(self, linear: Linear) -> int | fx.Node:
        """An integer made of sizes only, as an argument for operators.

        Raises:
            LookupError: a symbolic size in it is held by no node and measured by no tensor.
        """
        if linear not in self._numbers:
            terms: list[Any] = [self._scaled(self._symbol(atom), c) for atom, c in linear.terms]
            if linear.const or not terms:
                terms.append(linear.const)
            self._numbers[linear] = reduce(lambda a, b: self._writer.call(operator.add, a, b), terms)
        return self._numbers[linear]

    def tensor(self, linear: Linear, query: Linear, device: torch.device) -> fx.Node:
        """``linear`` over query rows and batch elements: int64, broadcasts to (B, 1, Q, 1).

        ``query`` is the number of rows. See :func:`emittable` for what ``linear`` may hold.
        """
        call = self._writer.call
        plain, rest = linear.split()
        sizes, terms = Linear(rest.const), []
        if factor := plain.get(Q.axis):
            rows = call(aten.arange.default, self.number(query), device=device)
            terms.append(self._times(call(aten.unsqueeze.default, rows, 1), factor))
        for atom, factor in rest.terms:
            if isinstance(atom, Held):
                terms.append(self._times(self._held(atom), factor))
            else:
                sizes = sizes + Linear(0, frozenset([(atom, factor)]))
        if not terms:
            return call(aten.full.default, [1], self.number(sizes), dtype=torch.int64, device=device)
        total = reduce(lambda a, b: call(aten.add.Tensor, a, b), terms)
        return total if sizes == Linear() else call(aten.add.Tensor, total, self.number(sizes))

    def _held(self, held: Held) -> fx.Node:
        """A tensor element: 0-d, or (B, 1, 1, 1) where it differs per batch element."""
        node, call = held.node, self._writer.call
        batched = False
        for axis, index in reversed(list(enumerate(held.index))):
            if index.coefficient(B):
                batched = True
                if index.const:
                    node = call(aten.slice.Tensor, node, axis, index.const)
            else:
                node = call(aten.select.int, node, axis, index.const)
        if value(node).dtype != torch.int64:
            node = call(aten.to.dtype, node, torch.int64)
        return call(aten.reshape.default, node, [-1, 1, 1, 1]) if batched else node

    def _times(self, node: fx.Node, factor: int) -> fx.Node:
        return node if factor == 1 else self._writer.call(aten.mul.Tensor, node, factor)

    def _scaled(self, symbol: fx.Node, factor: int) -> fx.Node:
        return symbol if factor == 1 else self._writer.call(operator.mul, symbol, factor)

    def _symbol(self, expr: Any) -> fx.Node:
        if self._symbols is None:
            self._symbols = dict(_symbolic_nodes(self._writer.graph))
        if expr not in self._symbols:
            self._symbols[expr] = self._made(expr)
        return self._symbols[expr]

    def _made(self, expr: Any) -> fx.Node:
        """A node for a symbolic integer that no node holds."""
        for node in self._writer.graph.nodes:
            for axis, n in enumerate(shape(node)) if is_tensor(node) else ():
                if isinstance(n, torch.SymInt) and n.node.expr == expr:
                    return self._writer.call(aten.sym_size.int, node, axis)
        if isinstance(expr, sympy.Mul):
            factors = [self.number(from_sympy(factor)) for factor in expr.args]
            product: Any = reduce(lambda a, b: self._writer.call(operator.mul, a, b), factors)
            return product
        raise LookupError(f"no tensor of the graph has the size {expr}")


def emittable(linear: Linear) -> bool:
    """Whether :meth:`Integers.tensor` can emit ``linear``: sizes, q, and elements that b alone selects."""
    plain, rest = linear.split()
    return plain.keys() <= {Q.axis} and all(_emittable(atom) for atom, _ in rest.terms)


def _emittable(atom: Atom) -> bool:
    return isinstance(atom, sympy.Expr) or (isinstance(atom, Held) and _selected_by_batch(atom))


def _selected_by_batch(held: Held) -> bool:
    axes = [index - index.const for index in held.index]
    return all(axis in (Linear(), Linear.of(B)) for axis in axes) and axes.count(Linear.of(B)) <= 1


def _symbolic_nodes(graph: fx.Graph) -> Iterator[tuple[sympy.Expr, fx.Node]]:
    for node in reversed(graph.nodes):
        held = node.meta.get("val")
        if isinstance(held, torch.SymInt) and node.op != "output":
            yield held.node.expr, node
