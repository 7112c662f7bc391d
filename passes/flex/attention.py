"""``flex_attention`` as ``scaled_dot_product_attention`` with its mask, where its mods allow it.

The two agree in everything else: scores in float32, minus infinity where masked, 0 in rows that keep no
key. Only ``mask_mod`` says what a ``BlockMask`` masks; its lists of blocks tell a kernel what it may
skip, and torch's own computation on the CPU does not look at them. Soft-capped scores, which SDPA does not
have, are written out as products and a softmax (:mod:`soft_capped`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import fx

from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.emit_node import call
from npu_compile.passes.flex.scalar_program import NotScalar, Spread, returned
from npu_compile.passes.flex.score_mod import NotFused, ScoreMod, read_score_mod
from npu_compile.passes.flex.shared_calls import SharedCalls
from npu_compile.passes.flex.soft_capped import soft_capped
from npu_compile.passes.origin import copy_origin
from npu_compile.passes.specialise import given_number
from npu_compile.passes.strides import stands_for
from npu_compile.passes.values import Writes, argument, aten, shape, value

LEFT_BECAUSE = "flex_attention_left"
"""Key of ``node.meta``: why a call of flex_attention was left as it is."""


@dataclass(frozen=True)
class _Call:
    """The arguments of a call of the higher-order operator that count."""

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    score_mod: fx.Graph
    mask_mod: fx.Graph
    scale: float
    score_captured: Sequence[Any]
    mask_captured: Sequence[Any]


def is_flex_attention(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.higher_order.flex_attention


def write_out_flex_attention(module: fx.GraphModule) -> None:
    """Replace the calls of flex_attention in a normalised ``module`` whose mods are plain masks and biases.

    Others stay; the reason is in their ``meta[LEFT_BECAUSE]``.
    """
    if not any(is_flex_attention(node) for node in module.graph.nodes):
        return
    # flex_attention scales the log-sum-exp for its caller, who may not want it.
    remove_dead_code(module.graph)
    calls = [node for node in module.graph.nodes if is_flex_attention(node)]
    shared = SharedCalls(module.graph, Writes(module.graph))
    for node in calls:
        try:
            _write_out(_read(module, node), shared)
        except NotFused as reason:
            node.meta[LEFT_BECAUSE] = str(reason)
        except NotScalar as reason:
            node.meta[LEFT_BECAUSE] = f"score_mod or mask_mod is no function of single elements: {reason}"
    remove_dead_code(module.graph)


def _read(module: fx.GraphModule, node: fx.Node) -> _Call:
    args: Any = node.args
    query, key, value_, score_mod, block_mask, scale, _, score_captured, mask_captured = args
    if any(argument(user, 1, "index") != 0 and user.users for user in node.users):
        raise NotFused("the log-sum-exp or the maximum of the scores is returned besides the attention")
    number = given_number(scale)
    if number is None:
        raise NotFused("the scale is not a number known when compiling")
    mods = (module.get_submodule(str(mod.target)) for mod in (score_mod, block_mask[-1]))
    graphs = [mod.graph for mod in mods if isinstance(mod, fx.GraphModule)]
    if len(graphs) != 2:
        raise NotFused("score_mod or mask_mod is not traced")
    return _Call(node, query, key, value_, graphs[0], graphs[1], number, score_captured, mask_captured)


def _write_out(found: _Call, shared: SharedCalls) -> None:
    score_mod = read_score_mod(found.score_mod)
    graph = found.node.graph
    operands, scale = (found.query, found.key, found.value), found.scale * score_mod.scale
    with graph.inserting_before(found.node):
        mask = _mask(found, score_mod, shared)
        if score_mod.softcap is not None:
            made = soft_capped(graph, *operands, mask, scale, score_mod.softcap)
        else:
            grouped = shape(found.query)[1] != shape(found.key)[1]
            sdpa = aten.scaled_dot_product_attention.default
            made = (call(graph, sdpa, *operands, mask, scale=scale, enable_gqa=grouped),)
    copy_origin(found.node, *made)
    attention = made[-1]
    for user in list(found.node.users):
        if argument(user, 1, "index") == 0:
            stands_for(attention, user)
            user.replace_all_uses_with(attention)


def _mask(found: _Call, score_mod: ScoreMod, shared: SharedCalls) -> fx.Node:
    """bool, or float with -inf where masked, if there is a bias: (B or 1, N or 1, Q, K)."""
    indices = _indices(found, shared)
    mask_values = Spread(found.mask_mod, indices, found.mask_captured, shared.call)
    score_values = Spread(found.score_mod, [None, *indices], found.score_captured, shared.call)
    keep, biases = [mask_values.of(returned(found.mask_mod))], []
    for term in score_mod.terms:
        node = score_values.of(term.node)
        if term.kind in ("add", "subtract"):
            biases.append(node if term.kind == "add" else shared.call(aten.neg.default, node))
        else:
            keep.append(node if term.kind == "keep" else shared.call(aten.logical_not.default, node))
    mask = reduce(lambda a, b: shared.call(aten.logical_and.default, a, b), keep)
    if biases:
        kind = torch.float64 if value(found.query).dtype == torch.float64 else torch.float32
        exact = [shared.call(aten.to.dtype, one, kind) for one in biases]
        bias = reduce(lambda a, b: shared.call(aten.add.Tensor, a, b), exact)
        mask = shared.call(aten.where.ScalarOther, mask, bias, float("-inf"))
    if value(mask).ndim < 4:
        mask = shared.call(aten.view.default, mask, [1, 1, 1, 1])
    rows, keys = shape(found.query)[2], shape(found.key)[2]
    return shared.call(aten.expand.default, mask, [-1, -1, rows, keys])


def _indices(found: _Call, shared: SharedCalls) -> list[fx.Node]:
    """(B, 1, 1, 1), (1, N, 1, 1), (1, 1, Q, 1) and (1, 1, 1, K): the index along each dimension."""
    batch, heads, rows, _ = shape(found.query)
    device = value(found.query).device
    indices = []
    for axis, count in enumerate((batch, heads, rows, shape(found.key)[2])):
        along = shared.call(aten.arange.default, count, device=device)
        sizes = [1, 1, 1, 1]
        sizes[axis] = -1
        indices.append(shared.call(aten.view.default, along, sizes))
    return indices
