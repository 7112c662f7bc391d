"""Operators that put tensors next to each other: which of them an element comes from depends on its index."""

from __future__ import annotations

from typing import Any

from torch import fx

from npu_compile.passes.mask.formula import conjunction
from npu_compile.passes.mask.interpret import Interpreter, arguments, own_index, rule, scalar
from npu_compile.passes.mask.linear import Dim, Linear, size
from npu_compile.passes.mask.rules_views import positive, source_of
from npu_compile.passes.mask.values import Unknown, Value, holds_tensor, select, substitute, typed
from npu_compile.passes.values import argument, aten, shape


@rule(aten.cat.default, aten.concat.default)
def _cat(interpreter: Interpreter, node: fx.Node) -> Value:
    rank = len(shape(node))
    axis = positive(argument(node, 1, "dim", 0), rank) - rank
    parts = [part for part in arguments(node)[0] if not _empty(part)]
    here = own_index(shape(node))[axis]
    result: Value | None = None
    first = size(sum((shape(part)[axis] for part in parts), 0))
    for part in reversed(parts):
        first = first - size(shape(part)[axis])
        piece = substitute(interpreter.read(part, node), {axis: here - first})
        before = interpreter.prover.compare(first + size(shape(part)[axis]) - 1 - here, shape(node))
        result = piece if result is None else interpreter.simplified(select(before, piece, result), node)
    if result is None:
        raise Unknown
    return result


@rule(aten.pad.default, aten.constant_pad_nd.default)
def _pad(interpreter: Interpreter, node: fx.Node) -> Value:
    """A constant around a mask that is made of indices."""
    if node.target is aten.pad.default and argument(node, 2, "mode", "constant") != "constant":
        raise Unknown
    fill = argument(node, 3 if node.target is aten.pad.default else 2, "value", None) or 0
    result, around = interpreter.read(source_of(node), node), typed(scalar(fill), node)
    widths = arguments(node)[1]
    if holds_tensor(result):
        raise Unknown
    for i in range(0, len(widths), 2):
        axis, left, right = -1 - i // 2, size(_held(widths[i])), size(_held(widths[i + 1]))
        here, end = Linear.of(Dim(axis)), size(shape(node)[axis]) - right
        limits = (here - left, end - 1 - here)
        inside = conjunction(interpreter.prover.compare(limit, shape(node)) for limit in limits)
        result = select(inside, typed(substitute(result, {axis: here - left}), node), around)
    return interpreter.simplified(result, node)


def _held(width: Any) -> Any:
    return width.meta["val"] if isinstance(width, fx.Node) else width


def _empty(part: fx.Node) -> bool:
    return any(isinstance(n, int) and n == 0 for n in shape(part))
