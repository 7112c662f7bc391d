"""Find keys or values that a program gathers from a paged cache before it attends to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import fx

from npu_compile.passes.paged.axes import Axis, Dims, names, source_of, step
from npu_compile.passes.paged.table_index import NotSlots, table_slots
from npu_compile.passes.values import argument, aten, is_call, same, shape, value

Form = Literal["BnBsH", "BnNBsD"]


class NotPaged(Exception):
    """Keys or values that are gathered, but not provably by block table; the message says why."""


@dataclass(frozen=True)
class Gathered:
    """``gather`` reads ``tokens`` tokens of each request from ``cache``, by ``table`` (B, columns).

    The cache's blocks are in ``form``; with ``rows`` its first dimension counts tokens, not blocks.
    """

    gather: fx.Node
    cache: fx.Node
    table: fx.Node
    block_size: int
    form: Form
    rows: bool
    tokens: Any


def gathered(operand: fx.Node, layout: str) -> Gathered | None:
    """How ``operand``, a key or value laid out as ``layout`` (BNSD or BSND), is gathered; None if it isn't.

    Raises NotPaged.
    """
    chain: list[fx.Node] = []
    node: fx.Node | None = operand
    while node is not None and not _is_gather(node):
        chain.append(node)
        node = source_of(node)
    if node is None:
        return None
    cache, index, position = _gather_parts(node)
    if value(index).dtype.is_floating_point or len(shape(cache)) not in (2, 3, 4) or position != 0:
        return None
    read = _by_block(node, cache, index, chain, layout)
    if read is None and len(shape(cache)) < 4:
        read = _by_row(node, cache, index, chain, layout)
    if read is None:
        raise NotPaged("the gathered blocks are rearranged in a way that a paged cache can't be")
    return read


def _is_gather(node: fx.Node) -> bool:
    if is_call(node, aten.index_select.default, aten.embedding.default):
        return True
    return is_call(node, aten.index.Tensor) and len(node.args[1]) == 1  # type: ignore[arg-type]


def _gather_parts(node: fx.Node) -> tuple[fx.Node, fx.Node, int]:
    """The tensor read, the index, and the dimension it is for."""
    first, second = argument(node, 0, "self"), argument(node, 1, "indices")
    if is_call(node, aten.index_select.default):
        return first, argument(node, 2, "index"), argument(node, 1, "dim")
    return (first, second, 0) if is_call(node, aten.embedding.default) else (first, second[0], 0)


def _by_block(
    gather: fx.Node, cache: fx.Node, index: fx.Node, chain: list[fx.Node], layout: str
) -> Gathered | None:
    """``cache[table]``: the index names whole blocks."""
    if len(shape(index)) != 2 or len(shape(cache)) < 3:
        return None
    axes = (*_axes(shape(index), "B", "C"), *_axes(shape(cache)[1:], "c1", "c2", "c3"))
    form = _form(_after(chain, axes), layout, axes)
    if form is None:
        return None
    size = shape(cache)[1 if form == "BnBsH" else 2]
    return Gathered(gather, cache, index, size, form, False, shape(index)[1] * size)


def _by_row(
    gather: fx.Node, cache: fx.Node, index: fx.Node, chain: list[fx.Node], layout: str
) -> Gathered | None:
    """``rows[slots]``: the index names tokens. Raises NotPaged where they aren't slots of a table."""
    try:
        slots = table_slots(index)
    except NotSlots as reason:
        raise NotPaged(str(reason)) from None
    if not same(shape(cache)[0] % slots.block_size, 0):
        raise NotPaged(f"a cache of {shape(cache)[0]} rows isn't one of blocks of {slots.block_size}")
    tokens = _axes((slots.batch, slots.tokens), "B", "S")
    row = _axes(shape(cache)[1:], "c2", "c3")
    start = tokens if len(shape(index)) == 2 else ((tokens[0][0], tokens[1][0]),)
    form = _form(_after(chain, (*start, *row)), layout, (*tokens, *row))
    if form is None:
        return None
    return Gathered(gather, cache, slots.table, slots.block_size, form, True, slots.tokens)


def _axes(sizes: tuple[Any, ...], *called: str) -> Dims:
    return tuple((Axis(name, size),) for name, size in zip(called, sizes, strict=False))


def _after(chain: list[fx.Node], dims: Dims | None) -> Dims | None:
    for node in reversed(chain):
        dims = step(node, dims) if dims is not None else None
    return dims


def _form(dims: Dims | None, layout: str, axes: Dims) -> Form | None:
    """The form of the cache's blocks, where ``dims`` are those of keys in ``layout``.

    ``axes``: B are requests, C a table's columns, S a request's tokens; c1, c2 and c3 are a block's.
    """
    if dims is None or len(dims) != 4:
        return None
    order = names(dims)
    batch, heads, tokens, width = order if layout == "BNSD" else (order[0], order[2], order[1], order[3])
    real = {axis.name for (axis,) in axes if not same(axis.size, 1)}

    def only(*wanted: str) -> tuple[str, ...]:
        return tuple(name for name in wanted if name in real)

    if batch != only("B"):
        return None
    if tokens in (only("C", "c1"), only("S")) and heads + width in (only("c2", "c3"), ("c2.0", "c2.1")):
        return "BnBsH"
    if tokens == only("C", "c2") and (heads, width) == (only("c1"), only("c3")):
        return "BnNBsD"
    return None
