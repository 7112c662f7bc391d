"""recognise: attention written by hand, softmax(scale * q @ k^T + mask) @ v.

Start at a softmax over the last axis. Above it, follow scales, masks, casts and reshapes up
to the product of two activations; below it, casts and dead dropout down to the product with
V. Each step is judged by what it does to the values, and no value on the way may have
another reader, who would then still need it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from npu_compile.passes.recognise.arrange import Arrangement, arrange, frame_of
from npu_compile.passes.recognise.assemble import Declined, Parts
from npu_compile.passes.recognise.attention_like import why_not_read
from npu_compile.passes.recognise.late_sink import LateSink, late_sink
from npu_compile.passes.recognise.placing import placed, views_to
from npu_compile.passes.recognise.probabilities import Weighted, weighted_by
from npu_compile.passes.recognise.scores import Beside, Scores, scores_of
from npu_compile.passes.recognise.where_from import operator_name
from npu_compile.passes.recognise.zeroed import is_mask_of
from npu_compile.passes.site import MaskTerm, Operand, Views
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    node_input,
    operand,
    same,
    seen_through,
    shape,
    value,
    viewed,
    written_through,
)

_SOFTMAXES = (aten.softmax.int, aten._softmax, aten._safe_softmax, aten.special_softmax)


def is_softmax(node: fx.Node) -> bool:
    return is_call(node, *_SOFTMAXES, aten.log_softmax)


def match_softmax(node: fx.Node) -> Parts:
    """The parts of the attention around a softmax.

    Raises:
        Declined: it can't be fused, or it is no attention at all (see :mod:`attention_like`).
    """
    if not is_call(node, *_SOFTMAXES):
        raise Declined("the product with V takes the logarithms of probabilities")
    late = late_sink(node.args[0])
    scores = scores_of(node.args[0], node, *(() if late is None else (late.logsumexp,)))
    if scores is None:
        raise Declined(why_not_read(node))
    if scores.obstacle is not None:
        raise Declined(scores.obstacle)
    if any(same(size, 0) for size in (*shape(scores.product.left), *shape(scores.product.right))):
        raise Declined("there are no queries or no keys")
    scale, softcap = _scale_and_cap(scores, has_sink=late is not None or scores.sink is not None)
    over = argument(node, 1, "dim") % len(shape(node))
    if scores.sink is not None and over != len(shape(node)) - 1:
        raise Declined("the sink is not put beside the keys")
    weighted = weighted_by(node, scores.axes, scores.frame, has_sink=scores.sink is not None)
    if any(not is_mask_of(zeroed, scores.masks, scores.axes) for zeroed in weighted.zeroed):
        raise Declined("the attention probabilities are set to 0 where the scores were not masked")
    if late is not None:
        scores = _with_late_sink(scores, late, weighted)
    found = arrange(scores, weighted, over)
    query, key, values = _operands(scores, weighted, found)
    autocast = _autocast(scores.product.node, scores.product.right)
    return Parts(
        # 0, as SDPA gives, and not NaN where a row has no key: what vmap makes of SDPA.
        form="sdpa" if is_call(node, aten._safe_softmax) else "softmax",
        output=weighted.node if late is None else late.output,
        output_views=_output_views(scores, weighted, found),
        query=query,
        key=key,
        value=values,
        scale=scale,
        softcap=softcap,
        masks=tuple(_mask(mask, scores, found) for mask in scores.masks),
        sink=None if scores.sink is None else _sink(scores.sink, scores, found),
        zero_if_empty=bool(weighted.zeroed),
        nan_if_void=late is not None,
        softmax_dtype=scores.mask_dtype or value(node).dtype,
        autocast=autocast or _autocast(weighted.node, weighted.value),
    )


def _with_late_sink(scores: Scores, late: LateSink, weighted: Weighted) -> Scores:
    """``scores`` joined by the sink that the program puts in behind the product with V."""
    if scores.sink is not None:
        raise Declined("two sinks join the scores")
    if scores.shifted:
        raise Declined("the row maximum is taken off the scores before a sink")
    if weighted.zeroed:
        raise Declined("the attention probabilities are set to 0 where scores were masked, before a sink")
    rows = scores.frame[:-1]
    same_rows = scores.axes.resolve(weighted.frame)[:-1] == scores.axes.resolve(rows)
    if late.product is not weighted.node or not same_rows:
        raise Declined("the log-sum-exp of the scores scales something else than the product with V")
    # Also whoever writes to it through a view: what the gate scales is then not the product any more.
    others = sorted({operator_name(user) for user in late.product.users if user is not late.output})
    if others:
        raise Declined(f"the product with V is also used by {', '.join(others)}, without its sink")
    frame = (*rows, ()) if late.keepdim else rows
    return replace(scores, sink=Beside(operand(late.sink, late.joined), frame))


def _autocast(product: fx.Node, factor: fx.Node) -> torch.dtype | None:
    """The dtype that a product has under autocast where its factors have another one."""
    dtype = value(product).dtype
    return dtype if value(factor).dtype != dtype else None


def _scale_and_cap(scores: Scores, has_sink: bool) -> tuple[float, float | None]:
    """The scale of the product, and what the tanh of the scores is multiplied by if there is one."""
    if scores.before_tanh is None:
        return scores.scale, None
    if has_sink:
        raise Declined("the scores are soft-capped (tanh) and joined by a sink")
    if scores.scale <= 0 or scores.before_tanh == 0:
        raise Declined("the scores are soft-capped (tanh) by a number that is not positive")
    return scores.scale * scores.before_tanh, scores.scale


def _operands(scores: Scores, weighted: Weighted, found: Arrangement) -> tuple[Operand, Operand, Operand]:
    """Query (B, N, Q, D), key (B, N_kv, K, D) and value (B, N_kv, K, D_v)."""
    product, axes = scores.product, scores.axes
    sides = [(product.left, scores.left), (product.right, scores.right)]
    (query, query_frame), (key, key_frame) = sides if found.left_is_query else reversed(sides)
    groups = (found.batch, found.heads, found.query, found.head_dim)
    placed_query = placed(query, product.node, query_frame, groups, axes)
    for factor in scores.tensor_scales:
        placed_query = viewed(placed_query, aten.mul.Tensor, _per_row(factor, scores, found))
    groups = (found.batch, found.kv_heads, found.key, found.head_dim)
    placed_key = placed(key, product.node, key_frame, groups, axes)
    groups = (found.batch, found.kv_heads, found.key, found.value_dim)
    placed_value = placed(weighted.value, weighted.node, weighted.value_frame, groups, axes)
    return _precision_of_values(placed_query, placed_key, placed_value)


def _output_views(scores: Scores, weighted: Weighted, found: Arrangement) -> Views:
    """From (B, N, Q, D_v) to what the product with V computes."""
    frame = scores.axes.resolve((found.batch, found.heads, found.query, found.value_dim))
    return views_to(frame, scores.axes.resolve(weighted.frame))


def _mask(mask: Beside, scores: Scores, found: Arrangement) -> MaskTerm:
    term = mask.what
    assert isinstance(term, MaskTerm)
    return replace(term, views=(*term.views, *_aligned(mask, scores, found)))


def _sink(sink: Beside, scores: Scores, found: Arrangement) -> Operand:
    read = sink.what
    assert isinstance(read, Operand)
    missing = 4 - len(shape(read.node))
    views = _aligned(sink, scores, found) or ((aten.unsqueeze.default, (0,)),) * missing
    return Operand(read.node, read.read_at, views)


def _per_row(factor: Beside, scores: Scores, found: Arrangement) -> fx.Node:
    """A scale that broadcasts to the query (B, N, Q, D) as it is."""
    node = factor.what.node
    assert node is not None
    if _aligned(factor, scores, found):
        raise Declined(f"the scale {node.name} has its batch and heads in one dimension")
    return node


def _aligned(beside: Beside, scores: Scores, found: Arrangement) -> Views:
    """The views that make a tensor broadcast to (B, N, Q, K); none where it does as it is."""
    frame, groups = frame_of(beside, scores), scores.axes.resolve(found.scores)
    if len(frame) <= 4 and not views_to(((),) * (4 - len(frame)) + frame, groups):
        return ()
    return views_to(frame, groups)


def _precision_of_values(query: Operand, key: Operand, values: Operand) -> tuple[Operand, Operand, Operand]:
    """Drop casts of q and k to float32 that only serve the product: the operator accumulates in float32."""
    wanted = value(values.node).dtype

    def uncast(read: Operand) -> Operand:
        node = read.node
        if value(node).dtype == wanted or read.views or not is_call(node, aten.to, aten._to_copy):
            return read
        if written_through(node):
            return read
        source = node_input(node)
        return seen_through(Operand(source, node)) if value(source).dtype == wanted else read

    return uncast(query), uncast(key), values
