"""Where a graph's batch lies, and whether rows of padding can be added to it.

The batch is the first dimension of the attention's queries. Rows may be added where every value of a row
depends on that row and earlier ones only, and where the graph writes nothing per row, except to slots that
an input names (see padding_writes.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

from ..passes.values import given_arguments, node_input, shape
from .memory import Memory
from .padding_writes import SlotWrite, slot_writes
from .split import attention_calls

DIM_ARGUMENTS = ("dim", "dims")
NEUTRAL = ("aten::unsqueeze", "aten::squeeze", "aten::sym_size", "aten::cumsum")
"""Operators whose ``dim`` doesn't say that a row depends on a later one."""


class NotPaddable(Exception):
    """Why rows can't be added to a graph's batch; a sentence."""


@dataclass(frozen=True)
class BatchRows:
    """The batch of a graph.

    ``inputs`` and ``results`` are the batch dimension of each input and result that has one, by position;
    ``ints`` and ``int_results`` the positions of ints that are the batch size. ``fills`` are the values of
    padding other than 0, by position of the input. ``writes`` are the cache writes to keep padding out of.
    """

    inputs: dict[int, int]
    ints: tuple[int, ...]
    results: dict[int, int]
    int_results: tuple[int, ...]
    fills: dict[int, int]
    writes: tuple[SlotWrite, ...]


def find_batch(gm: fx.GraphModule) -> BatchRows:
    """The batch of ``gm``. Raises :class:`NotPaddable`."""
    memory = Memory(gm.graph)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    symbol = _batch_symbol(gm.graph)
    writes = slot_writes(gm.graph, memory, lambda node: symbol in _symbols(node))
    for node in inputs:
        if node in memory.writers and symbol in _symbols(node):
            raise NotPaddable(f"{node.name} is written to and has the size of the batch")
    for node in gm.graph.nodes:
        if node not in [write.node for write in writes]:
            _require_rows_apart(node, symbol, memory)
    output = gm.graph.output_node().args[0]
    results = list(output) if isinstance(output, list | tuple) else [output]
    slots = {write.slots for write in writes}
    fills = {i: -1 for i, node in enumerate(inputs) if node in slots}
    fills |= {inputs.index(node): 1 for node in _kv_lengths_of_tokens(gm.graph)}
    return BatchRows(
        inputs=dict(_batch_dims(inputs, symbol)),
        ints=_batch_ints(inputs, symbol),
        results=dict(_batch_dims(results, symbol)),
        int_results=_batch_ints(results, symbol),
        fills=fills,
        writes=tuple(writes),
    )


def _batch_symbol(graph: fx.Graph) -> sympy.Symbol:
    queries = [node_input(call) for call in attention_calls(graph)]
    if not queries:
        raise NotPaddable("there is no attention call to tell the batch by")
    sizes = {_expression(shape(query)[0]) for query in queries}
    size = sizes.pop()
    if sizes or not isinstance(size, sympy.Symbol):
        raise NotPaddable(
            f"the attention's batch is {size}, not a size that can change (dynamic=True makes one)"
        )
    return size


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _symbols(node: Any) -> set[sympy.Symbol]:
    """The size symbols in the shape of a node's value, or in the value of an int."""
    return set().union(*(_size_symbols(value) for value in _values(node)))


def _size_symbols(value: Any) -> set[sympy.Symbol]:
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return set().union(*(getattr(_expression(size), "free_symbols", set()) for size in sizes))


def _values(node: Any) -> Iterator[Any]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else node
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, torch.Tensor | torch.SymInt):
            yield item


def _batch_dims(nodes: list[Any], symbol: sympy.Symbol) -> Iterator[tuple[int, int]]:
    for position, node in enumerate(nodes):
        value = next(_values(node), None)
        if not isinstance(value, torch.Tensor) or symbol not in _symbols(node):
            continue
        dims = [dim for dim, size in enumerate(value.shape) if _expression(size) == symbol]
        if len(dims) != 1:
            raise NotPaddable(f"{node} has the batch in the sizes {tuple(value.shape)}, which can't be cut")
        yield position, dims[0]


def _batch_ints(nodes: list[Any], symbol: sympy.Symbol) -> tuple[int, ...]:
    found = []
    for position, node in enumerate(nodes):
        value = next(_values(node), None)
        if isinstance(value, torch.SymInt) and symbol in _symbols(node):
            if _expression(value) != symbol:
                raise NotPaddable(f"{node} is computed from the batch size")
            found.append(position)
    return tuple(found)


def _require_rows_apart(node: fx.Node, symbol: sympy.Symbol, memory: Memory) -> None:
    """Raise if a row of padding could change what ``node`` computes for other rows, or writes."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return
    if _uses_batch_as_value(node, symbol):
        raise NotPaddable(f"{node.name} computes with the batch size")
    if not any(_has_rows(argument, symbol) for argument in node.all_input_nodes):
        return
    if any(base.op in ("placeholder", "get_attr") for base in memory.written(node)):
        raise NotPaddable(f"{node.name} writes the rows of the batch to a tensor that outlives the step")
    for value in _values(node):
        if isinstance(value, torch.Tensor) and value.numel() != 0:
            dims = [dim for dim, size in enumerate(value.shape) if symbol in _size_symbols(size)]
            if len(dims) != 1:
                raise NotPaddable(f"{node.name} mixes the rows of the batch")
    if _works_along_batch(node, symbol):
        raise NotPaddable(f"{node.name} works along the batch")


def _has_rows(node: fx.Node, symbol: sympy.Symbol) -> bool:
    return any(isinstance(v, torch.Tensor) and symbol in _size_symbols(v) for v in _values(node))


def _uses_batch_as_value(node: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether a number that depends on the batch size is an operand; the end of an arange isn't one."""
    assert isinstance(node.target, OpOverload)
    if node.target._schema.name == "aten::arange":
        return False
    for argument, given in given_arguments(node):
        is_size = isinstance(given, fx.Node) and isinstance(given.meta.get("val"), torch.SymInt)
        if is_size and symbol in _symbols(given) and str(argument.type) in ("Tensor", "number", "Scalar"):
            return True
    return False


def _works_along_batch(node: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether the ``dim`` of ``node``, or a tensor index, is the batch dimension of its first argument."""
    first = next(_values(node.args[0] if node.args else None), None)
    if not isinstance(first, torch.Tensor):
        return False
    assert isinstance(node.target, OpOverload)
    batch = [dim for dim, size in enumerate(first.shape) if symbol in _size_symbols(size)]
    if node.target._schema.name in NEUTRAL or _is_whole_slice(node):
        return False
    for argument, given in given_arguments(node):
        if argument.name in DIM_ARGUMENTS and first.dim():
            dims = given if isinstance(given, list | tuple) else [given]
            if any(isinstance(dim, int) and dim % first.dim() in batch for dim in dims):
                return True
        if argument.name == "indices" and isinstance(given, list | tuple):
            return any(index is not None and dim in batch for dim, index in enumerate(given))
    return False


def _is_whole_slice(node: fx.Node) -> bool:
    if node.target is not torch.ops.aten.slice.Tensor:
        return False
    start, end = (*node.args[2:], None, None)[:2]
    return start in (0, None) and (end is None or (isinstance(end, int) and end > 1 << 62))


def _kv_lengths_of_tokens(graph: fx.Graph) -> Iterator[fx.Node]:
    """Inputs that are the key lengths of a TND call as they come: padding has one token, which sees one key.

    Raises where query lengths come from an input: they add up, and padding would have to go on counting.
    """
    for call in attention_calls(graph):
        if not str(call.kwargs.get("input_layout", "")).startswith("TND"):
            continue
        for name, lengths in call.kwargs.items():
            if not name.startswith("actual_seq") or not isinstance(lengths, fx.Node):
                continue
            source = lengths.args[0]
            if isinstance(source, fx.Node) and source.op == "placeholder":
                if not name.endswith(("_kv", "_kvlen")) or call.kwargs.get("block_table") is None:
                    raise NotPaddable(
                        f"{source.name}: the cumulative lengths of a TND call come from an input"
                    )
                yield source
