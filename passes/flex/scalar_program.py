"""Functions of single elements, and their values over whole index ranges.

A ``mask_mod`` or ``score_mod`` computes one element: its graph holds 0-d tensors only. Pointwise
operators act alike on 0-d tensors and on tensors that broadcast against each other, and so does indexing
by as many 0-d tensors as the indexed tensor has dimensions. A graph of nothing else can be evaluated
everywhere at once by giving it index tensors such as (B, 1, 1, 1) and (1, 1, 1, K).

No 0-d tensor is left among them: types are promoted among 0-d tensors as among tensors with
dimensions, but not between the two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from npu_compile.passes.constant import number_in, written_down
from npu_compile.passes.values import aten, is_call, is_tensor, shape, value

Emit = Callable[..., fx.Node]
"""``emit(target, *args, **kwargs)`` adds a call to the graph that the program is written out into."""

_POINTWISE = (
    aten.__and__,
    aten.__or__,
    aten.__xor__,
    aten.floor_divide,
    aten.to,
    aten._to_copy,
    aten.where,
    aten.logical_and,
    aten.logical_or,
    aten.logical_not,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
)
"""Operators that act on each element alone, though torch does not tag all of them so."""

_RENAMES = (aten.alias, aten.detach, aten.detach_, aten.lift_fresh_copy, aten.lift_fresh)
_CREATES = (aten.zeros, aten.ones, aten.full, aten.scalar_tensor)
_CREATES_LIKE = (aten.new_zeros, aten.new_ones, aten.new_full)
_SIZES = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg)


class NotScalar(ValueError):
    """The program does more than compute one element from single elements; the message says what."""


@dataclass(frozen=True)
class _Partial:
    """A tensor of the host graph indexed along its first dimensions, not yet along all of them."""

    source: Any
    rank: int
    indices: tuple[Any, ...] = ()


class Spread:
    """Values of ``program`` over all indices at once, as nodes that broadcast to them; each is emitted once.

    ``program`` is ATen, with fake values in ``meta["val"]``. Its first placeholders are 0-d: ``indices``
    has a node of one or more dimensions for each that is read, which broadcast against each other. The
    other placeholders are what the program captures: ``captured`` has the tensors and sizes themselves.
    """

    def __init__(
        self, program: fx.Graph, indices: Sequence[Any], captured: Sequence[Any], emit: Emit
    ) -> None:
        self._emit = emit
        self._values: dict[fx.Node, Any] = {}
        placeholders = [node for node in program.nodes if node.op == "placeholder"]
        self._indices = dict(zip(placeholders, indices, strict=False))
        self._captured = dict(zip(placeholders[len(indices) :], captured, strict=True))

    def of(self, node: Any) -> Any:
        """The value of one node of the program; a plain value is itself.

        Raises:
            NotScalar: an operator on the way has no such meaning. Nodes may have been emitted by then.
        """
        found = self._value(node) if isinstance(node, fx.Node) else node
        if isinstance(found, _Partial):
            raise NotScalar("a captured tensor of several elements is used as a whole")
        return found

    def _value(self, node: fx.Node) -> Any:
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: fx.Node) -> Any:
        if node in self._indices:
            if not is_tensor(node) or shape(node):
                raise NotScalar("it is mapped over more than single elements")
            return self._indices[node]
        if node in self._captured:
            return self._capture(node, self._captured[node])
        if node.op == "get_attr":
            return self._constant(node)
        if node.op == "call_function":
            return self._call(node)
        raise NotScalar(f"it calls {node.target}")

    def _capture(self, node: fx.Node, given: Any) -> Any:
        if not is_tensor(node):
            return given
        rank = len(shape(node))
        return _Partial(given, rank) if rank else self._emit(aten.view.default, given, [1])

    def _read(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, self.of)

    def _constant(self, node: fx.Node) -> fx.Node:
        held = written_down(node)
        if held is None or held.ndim:
            raise NotScalar("it holds a tensor of its own")
        return self._emit(aten.full.default, [1], number_in(held), dtype=held.dtype, device=held.device)

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        given: Any = node.args
        if target in _SIZES and not is_tensor(node):
            return self._emit(target, *self._read(node.args))
        if is_call(node, *_RENAMES):
            return self._value(given[0])
        if is_call(node, aten.index.Tensor):
            if any(not is_tensor(at) or value(at).dtype == torch.bool for at in given[1]):
                raise NotScalar("a captured tensor is indexed by something else than integers")
            return self._indexed(given[0], self._read(given[1]))
        if is_call(node, aten.select.int) and given[1] == 0 and isinstance(given[2], int):
            at = self._emit(aten.full.default, [1], given[2], device=value(node).device)
            return self._indexed(given[0], [at])
        if not is_tensor(node) or shape(node) or not isinstance(target, OpOverload):
            raise NotScalar(f"{target} does not compute one element")
        if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
            raise NotScalar(f"{target} writes or draws random numbers")
        args, kwargs = self._read((node.args, node.kwargs))
        if is_call(node, *_CREATES_LIKE):
            return self._emit(target, args[0], [1], *args[2:], **kwargs)
        if is_call(node, aten.scalar_tensor):
            return self._emit(aten.full.default, [1], *args, **kwargs)
        if is_call(node, *_CREATES):
            return self._emit(target, [1], *args[1:], **kwargs)
        pointwise = torch.Tag.pointwise in target.tags or is_call(node, *_POINTWISE)
        if not pointwise or target is aten.masked_fill.Tensor:
            raise NotScalar(f"{target} is not pointwise")
        return self._emit(target, *args, **kwargs)

    def _indexed(self, source: Any, indices: Sequence[Any]) -> Any:
        found = self._value(source)
        if not isinstance(found, _Partial):
            raise NotScalar("a value that depends on the index is itself indexed")
        found = _Partial(found.source, found.rank, (*found.indices, *indices))
        if len(found.indices) < found.rank:
            return found
        return self._emit(aten.index.Tensor, found.source, list(found.indices))


def returned(program: fx.Graph) -> Any:
    """The one value that ``program`` returns."""
    (output,) = (node for node in program.nodes if node.op == "output")
    result = output.args[0]
    return result[0] if isinstance(result, (tuple, list)) and len(result) == 1 else result
