"""Let fused attention dequantise an int8 cache itself, where the program does it before.

What a program multiplies by a scale, rounds and attends to, the operator reads as int8, half the bytes, and
scales on the way. Results differ by roundings of the keys, so this is for programs that asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.lower.legality import illegal
from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, aten, is_call, is_tensor, same, shape, value
from npu_compile.passes.verify import fused_calls

FIA = "npu_fused_infer_attention_score"
CASTS = (aten.to, aten._to_copy)


class NotAntiquant(Exception):
    """Dequantised keys or values that the operator can't dequantise; the message says why."""


@dataclass(frozen=True)
class Dequantised:
    """``stored`` (B, N_kv, S, D), int8, times ``scale``, which is one number or (…, N_kv, 1, D)."""

    stored: fx.Node
    scale: fx.Node
    product: fx.Node


def dequantise_inside(module: fx.GraphModule, target: Target) -> tuple[str, ...]:
    """Rewrite the calls whose keys and values are int8 times a scale; one note for each such call.

    Calls that the operator can't take so stay as they are, with a note that says why.
    """
    graph, notes = module.graph, []
    writes = Writes(graph)
    for fused, name in list(fused_calls(graph)):
        if name != FIA or not str(fused.kwargs.get("input_layout", "")).startswith("BNSD"):
            continue
        key, value_ = (_dequantised(node) for node in fused.args[1:3])
        if key is None or value_ is None:
            continue
        try:
            notes.append(_rewrite(fused, key, value_, writes, target))
        except NotAntiquant as reason:
            notes.append(f"{fused.name}: int8 keys and values are dequantised before it: {reason}")
    if notes:
        remove_dead_code(graph)
        module.recompile()
    return tuple(notes)


def _dequantised(node: Any) -> Dequantised | None:
    product = _uncast(node)
    if not is_call(product, aten.mul.Tensor):
        return None
    for stored, scale in (product.args[:2], product.args[1::-1]):
        source = _uncast(stored)
        if is_tensor(source) and value(source).dtype == torch.int8 and is_tensor(scale):
            return Dequantised(source, scale, product)
    return None


def _uncast(node: Any) -> Any:
    """``node`` before it was cast to another dtype."""
    while is_call(node, *CASTS) and is_tensor(node.args[0]):
        node = node.args[0]
    return node


def _rewrite(fused: fx.Node, key: Dequantised, value_: Dequantised, writes: Writes, target: Target) -> str:
    graph = fused.graph
    for read in (key, value_):
        if not same(value(read.stored).dim(), 4) or shape(read.stored) != shape(read.product):
            raise NotAntiquant("the scale isn't one per channel of keys (B, N, S, D)")
        write = writes.between(Operand(read.stored, read.product), fused)
        if write is not None:
            raise NotAntiquant(f"the cache is written to ({write.name}) after it is dequantised")
    with graph.inserting_before(fused):
        tensors: dict[str, Any] = {
            "query": fused.args[0],
            "key": key.stored,
            "value": value_.stored,
            "key_antiquant_scale": _channels(graph, key, fused),
            "value_antiquant_scale": _channels(graph, value_, fused),
        }
        given = {name: node for name, node in fused.kwargs.items() if isinstance(node, fx.Node)}
        plain = {name: other for name, other in fused.kwargs.items() if name not in given}
        form = CallForm(FIA, {**tensors, **given}, plain)
        reason = illegal(form, target)
        if reason is not None:
            raise NotAntiquant(reason)
        inputs = [tensors.pop(name) for name in ("query", "key", "value")]
        inside = call(graph, fused.target, *inputs, **tensors, **fused.kwargs)  # type: ignore[arg-type]
    inside.meta = {**fused.meta, "val": inside.meta["val"]}
    fused.replace_all_uses_with(inside)
    graph.erase_node(fused)
    return f"{inside.name}: keys and values are read as int8"


def _channels(graph: fx.Graph, read: Dequantised, fused: fx.Node) -> fx.Node:
    """The scale as the operator takes it: (N_kv, 1, D) or (1,), in the query's dtype."""
    heads, width = shape(read.stored)[1], shape(read.stored)[3]
    sizes = shape(read.scale)
    while len(sizes) > 3 and same(sizes[0], 1):
        sizes = sizes[1:]
    wanted = [heads, 1, width]
    if all(same(size, 1) for size in sizes):
        wanted = [1]
    elif len(sizes) != 3 or not all(same(a, b) for a, b in zip(sizes, wanted, strict=True)):
        raise NotAntiquant(f"the scale is {shape(read.scale)}, not one number or one per channel")
    scale = call(graph, aten.reshape.default, _uncast(read.scale), wanted)
    dtype = value(fused.args[0]).dtype  # type: ignore[arg-type]
    return call(graph, aten._to_copy.default, scale, dtype=dtype) if value(scale).dtype != dtype else scale
