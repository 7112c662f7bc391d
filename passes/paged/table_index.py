"""Proof that an index tensor holds the slots of a block table.

The slot of a request's token j is ``table[b, j // block_size] * block_size + j % block_size``. However a
program spells that, it is an affine function of the table's entries. Two affine functions over the integers
that agree at zero and at two random points of 20 bits are the same, but for a chance below 2**-39.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from npu_compile.passes.values import aten, is_call, is_tensor, shape, value

_REARRANGE = (
    aten.view,
    aten.reshape,
    aten._unsafe_view,
    aten.flatten,
    aten.unsqueeze,
    aten.squeeze,
    aten.expand,
    aten.transpose,
    aten.permute,
    aten.slice,
    aten.select,
    aten.clone,
    aten.contiguous,
    aten.to,
    aten._to_copy,
    aten.repeat_interleave,
)
_GATHER = (aten.index, aten.index_select, aten.gather)
_SCALE = (aten.mul,)
_SHIFT = (aten.add, aten.sub, aten.rsub)
MAX_ELEMENTS = 1 << 22
"""Indices larger than this aren't evaluated."""


@dataclass(frozen=True)
class TableSlots:
    """The index is (B, tokens) slots of ``table`` (B, columns), perhaps flattened."""

    table: fx.Node
    block_size: int
    batch: int
    tokens: int


class NotSlots(Exception):
    """The index isn't proved to be slots; the message says why."""


def table_slots(index: fx.Node) -> TableSlots:
    """Raises NotSlots."""
    table = _table_of(index)
    (batch, columns), count = shape(table), value(index).numel()
    if not isinstance(count, int) or not isinstance(batch, int) or not isinstance(columns, int):
        raise NotSlots("the block table or the index has a size that isn't known when compiling")
    if count > MAX_ELEMENTS or not batch or count % batch:
        raise NotSlots(f"an index of {count} elements isn't proved to be slots of {batch} requests")
    tokens = count // batch
    slots = _evaluator(index, table)
    zero = slots(torch.zeros(batch, columns, dtype=torch.int64))
    block_size = int((slots(torch.ones(batch, columns, dtype=torch.int64)) - zero).flatten()[0])
    if not block_size > 0 or tokens > columns * block_size:
        raise NotSlots("the index isn't made of slots of the block table")
    generator = torch.Generator().manual_seed(0)
    for point in range(3):
        entries = torch.randint(2**20, (batch, columns), generator=generator) * min(point, 1)
        if not torch.equal(slots(entries).reshape(batch, tokens), _expected(entries, block_size, tokens)):
            raise NotSlots("the index isn't made of slots of the block table")
    return TableSlots(table, block_size, batch, tokens)


def _expected(table: Tensor, block_size: int, tokens: int) -> Tensor:
    token = torch.arange(tokens)
    return table[:, token // block_size] * block_size + token % block_size


def _table_of(index: fx.Node) -> fx.Node:
    """The one input of the affine function that ``index`` is."""
    leaves: dict[fx.Node, None] = {}
    stack, seen = [index], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        inputs = _affine_inputs(node)
        if inputs is None:
            leaves[node] = None
        else:
            stack.extend(inputs)
    if len(leaves) != 1:
        raise NotSlots("nothing says that the rows are slots of a block table")
    (leaf,) = leaves
    if len(shape(leaf)) != 2 or value(leaf).dtype.is_floating_point or leaf is index:
        raise NotSlots("the rows are given as they are: nothing says that they are slots of a block table")
    return leaf


def _affine_inputs(node: fx.Node) -> list[fx.Node] | None:
    """The inputs that ``node`` is an affine function of; [] for a constant, None for a leaf."""
    if node.op != "call_function" or not is_tensor(node):
        return None
    inputs = [one for one in node.all_input_nodes if is_tensor(one)]
    if len(inputs) != len(node.all_input_nodes):
        return None
    varying = [one for one in inputs if not _constant(one)]
    if not varying:
        return [] if _constant(node) else None
    source = node.args[0]
    if is_call(node, *_REARRANGE):
        return varying if varying == [source] else None
    if is_call(node, *_GATHER):
        return varying if varying == [source] else None
    if is_call(node, *_SCALE):
        return varying if len(varying) == 1 and node.args[0] is not node.args[1] else None
    return varying if is_call(node, *_SHIFT) else None


def _constant(node: fx.Node) -> bool:
    """Whether ``node`` is computed from numbers alone."""
    operator: Any = node.target
    if node.op != "call_function" or getattr(operator, "namespace", "") != "aten":
        return False
    if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    return all(_constant(one) for one in node.all_input_nodes)


def _evaluator(index: fx.Node, table: fx.Node) -> Callable[[Tensor], Tensor]:
    def evaluate(entries: Tensor) -> Tensor:
        known: dict[fx.Node, Any] = {table: entries}

        def run(node: fx.Node) -> Any:
            if node not in known:
                args, kwargs = map_arg((node.args, node.kwargs), run)
                known[node] = node.target(*args, **_on_host(kwargs))  # type: ignore[operator]
            return known[node]

        result: Tensor = run(index)
        return result.to(torch.int64)

    return evaluate


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": "cpu"} if kwargs.get("device") is not None else kwargs
