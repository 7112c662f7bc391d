"""Find keys or values that a program gathers from a paged cache before it attends to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import fx

from npu_compile.passes.axes import Axes, Frame, fresh, is_reshape, permutation_of
from npu_compile.passes.paged.table_index import NotSlots, table_slots
from npu_compile.passes.values import argument, aten, is_call, is_tensor, same, same_value_input, shape, value

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
        node = _source(node)
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


def _source(node: fx.Node) -> fx.Node | None:
    """The tensor that ``node`` is a view or a copy of, by an operator that keeps axes whole."""
    if same_value_input(node) is None and not is_reshape(node) and permutation_of(node) is None:
        return None
    source = node.args[0]
    return source if isinstance(source, fx.Node) and is_tensor(source) else None


def _by_block(
    gather: fx.Node, cache: fx.Node, index: fx.Node, chain: list[fx.Node], layout: str
) -> Gathered | None:
    """``cache[table]``: the index names whole blocks."""
    if len(shape(index)) != 2 or len(shape(cache)) < 3:
        return None
    axes = Axes()
    (batch, columns), (first, *others) = fresh(shape(index)), fresh(shape(cache)[1:])
    found = _after(chain, axes, (batch, columns, first, *others), layout)
    if found is None:
        return None
    form: Form
    if _merged(found) == axes.resolve((batch, (*columns, *first), sum(others, ()))):
        form = "BnBsH"
    elif len(others) == 2 and found == axes.resolve((batch, (*columns, *others[0]), first, others[1])):
        form = "BnNBsD"
    else:
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
    axes = Axes()
    (batch, tokens), row = fresh((slots.batch, slots.tokens)), fresh(shape(cache)[1:])
    start = (batch, tokens) if len(shape(index)) == 2 else ((*batch, *tokens),)
    found = _after(chain, axes, (*start, *row), layout)
    if found is None or _merged(found) != axes.resolve((batch, tokens, sum(row, ()))):
        return None
    return Gathered(gather, cache, slots.table, slots.block_size, "BnBsH", True, slots.tokens)


def _after(chain: list[fx.Node], axes: Axes, frame: Frame, layout: str) -> Frame | None:
    """The axes of keys or values in ``layout``, the first of ``chain``, as (B, S, N, D).

    ``frame``: those of what the last of ``chain`` reads.
    """
    for node in reversed(chain):
        if same_value_input(node) is None:
            after = axes.after(node, frame)
            if after is None:
                return None
            frame = after
    if len(frame) != 4:
        return None
    batch, second, third, width = axes.resolve(frame)
    return (batch, third, second, width) if layout == "BNSD" else (batch, second, third, width)


def _merged(frame: Frame) -> Frame:
    """(B, S, N, D) as (B, S, H), heads first in H."""
    batch, tokens, heads, width = frame
    return batch, tokens, (*heads, *width)
