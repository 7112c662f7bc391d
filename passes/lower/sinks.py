"""Attention sinks: logits that join each row's softmax sum and have no value.

FIA v2 takes them as ``learnable_sink`` (N,), packed (TND) only. Everywhere else they are put in afterwards,
which is exact: with the log-sum-exp ``lse`` of a row without its sink,

    sum_j exp(s_j) v_j / (sum_j exp(s_j) + exp(sink)) = out * sigmoid(lse - sink)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import (
    FIA_V2,
    CallForm,
    Operands,
    by_token,
    candidates,
    contiguous,
    from_tokens,
    through,
)
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.site import AttentionSite
from npu_compile.passes.values import aten, is_call, node_input, same, shape, value

_FINITE = (torch.finfo(torch.float32).min, torch.finfo(torch.float32).max)


def sink_candidates(
    site: AttentionSite, operands: Operands, masks: MaskArguments, target: Target, shared: Shared
) -> Iterator[CallForm]:
    """Forms of a site with a sink, to try in order: packed where nothing is copied for it but a prompt."""
    assert site.sink is not None
    graph = site.output.graph
    sink = through(graph, site.sink.node, site.sink.views)
    mode = _packed_mode(site, masks)
    if mode is not None and (logits := _per_head(sink, site.scores.heads)) is not None:
        yield _packed(site, operands, logits, masks, mode, shared)
    for form in candidates(site, operands, masks, target):
        yield replace(
            form,
            plain={**form.plain, "softmax_lse_flag": True},
            notes=(*form.notes, "the sink joins by the log-sum-exp"),
            late_sink=sink,
        )


def joined_by_sink(graph: fx.Graph, fused: fx.Node, result: fx.Node, sink: fx.Node) -> fx.Node:
    """The (B, N, Q, D_v) result without the share of the softmax that ``sink`` takes."""
    lse = call(graph, operator.getitem, fused, 1)
    # Rows without a key have an infinite one; with an infinite sink the difference would be NaN.
    lse = call(graph, aten.clamp.default, lse, *_FINITE)
    kept = call(graph, aten.sigmoid.default, call(graph, aten.sub.Tensor, lse, sink))
    product = call(graph, aten.mul.Tensor, result, kept)
    wanted = value(result).dtype
    return product if value(product).dtype == wanted else call(graph, aten.to.dtype, product, wanted)


def _per_head(sink: fx.Node, heads: int) -> fx.Node | None:
    """(N,) from a sink that is the same for all rows of a head, or None."""
    while is_call(sink, aten.expand.default):
        sink = node_input(sink)
    own = shape(sink)
    if len(own) != 4 or own[1] != heads or any(not same(own[dim], 1) for dim in (0, 2, 3)):
        return None
    return call(sink.graph, aten.reshape.default, sink, [-1])


def _packed_mode(site: AttentionSite, masks: MaskArguments) -> int | None:
    """The sparse_mode with which all tokens of all requests can be packed; None if they can't or needn't."""
    mode = int(masks.plain["sparse_mode"])
    if set(masks.tensors) - {"atten_mask"} or not same(site.scores.query, site.scores.key):
        return None
    if same(site.scores.query, 1) or (mode < 2 and "atten_mask" in masks.tensors):
        return None
    return 3 if mode == 2 else mode


def _packed(
    site: AttentionSite, operands: Operands, sink: fx.Node, masks: MaskArguments, mode: int, shared: Shared
) -> CallForm:
    """TND: the tokens of all requests on one axis."""
    scores = site.scores
    tensors = dict(masks.tensors)
    for name in ("query", "key", "value"):
        tensors[name] = contiguous(by_token(getattr(operands, name)))
    lengths = shared.cumulative_lengths(scores.batch, scores.query)
    tensors |= {"actual_seq_qlen": lengths, "actual_seq_kvlen": lengths, "learnable_sink": sink}
    plain: dict[str, Any] = {
        "num_query_heads": scores.heads,
        "num_key_value_heads": site.num_key_value_heads,
        "softmax_scale": site.scale,
        "input_layout": "TND",
        **masks.plain,
        "sparse_mode": mode,
    }
    return CallForm(FIA_V2, tensors, plain, from_tokens(scores, site.value_head_dim))
