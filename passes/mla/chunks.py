"""The expanded form in chunks of the context, so that only a bounded part of a cache is expanded at a time.

Attention over each part comes with its log-sum-exp, and npu_attention_update puts the parts
together, as vllm-ascend does for a prefill behind a long context.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import torch
from torch import fx

from npu_compile.kernels.partial_attention import EMPTY_BELOW, FLOOR, MOST_PARTS
from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import CallForm, Operands, candidates
from npu_compile.passes.lower.legality import first_legal
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.context import Part, parts
from npu_compile.passes.mla.emit import queries
from npu_compile.passes.mla.expand import expanded
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.site import ScoreShape
from npu_compile.passes.values import aten, shape, value

CHUNK_STEP = 128
"""Chunks are multiples of this many tokens, but for the last."""


@dataclass(frozen=True)
class ChunkedForm(CallForm):
    """Several calls that are made already; the fields describe the first, ``result`` is (B, N, Q, V)."""

    first: fx.Node | None = None
    result: fx.Node | None = None

    def emit(self, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
        assert self.first is not None and self.result is not None
        return self.first, self.result


def chunk_tokens(scores: ScoreShape, most: int) -> int | None:
    """Tokens of a request in a chunk, about ``most`` for all requests; None where one chunk holds all."""
    batch, keys = scores.batch, scores.key
    if not isinstance(batch, int) or not isinstance(keys, int) or batch * keys <= most:
        return None
    return max(most // batch // CHUNK_STEP * CHUNK_STEP, CHUNK_STEP)


def chunked(mla: MlaSite, masks: MaskArguments, target: Target, shared: Shared, tokens: int) -> CallForm:
    """FIA v1 over parts of ``tokens`` keys, merged.

    Raises:
        Declined: a mask that can't be cut, or calls that are illegal.
    """
    graph, scores = mla.attention.output.graph, mla.attention.scores
    query = call(graph, aten.cat.default, list(queries(graph, mla, masks.mean_rows)), -1)
    made = [_attended(graph, mla, query, part, target) for part in parts(mla, masks, shared, tokens)]
    form = made[0].form
    outs = [_rows(graph, part.out, mla.value_up.width) for part in made]
    lses = [call(graph, aten.reshape.default, part.lse, [-1]) for part in made]
    sizes = [shared.number(scores.batch), scores.heads, shared.number(scores.query), mla.value_up.width]
    merged = call(graph, aten.view.default, _merged(graph, outs, lses), sizes)
    merged = call(graph, aten.to.dtype, merged, value(query).dtype)
    notes = (*form.notes, f"context expanded {tokens} tokens at a time, in {len(made)} parts")
    return ChunkedForm(form.op, form.tensors, form.plain, (), notes, None, made[0].fused, merged)


@dataclass(frozen=True)
class Attended:
    """A call over a part of the keys: ``out`` (B, N, Q, V), ``lse`` (B, N, Q, 1); no weight without keys."""

    form: CallForm
    fused: fx.Node
    out: fx.Node
    lse: fx.Node


def _attended(graph: fx.Graph, mla: MlaSite, query: fx.Node, part: Part, target: Target) -> Attended:
    key, value_ = expanded(graph, mla, part.latent, part.rope)
    scores = replace(mla.attention.scores, key=shape(part.latent)[2])
    site = replace(mla.attention, scores=scores)
    form = first_legal(candidates(site, Operands(query, key, value_), part.masks, target), target)
    form = replace(form, plain={**form.plain, "softmax_lse_flag": True})
    fused, out = form.emit(graph)
    lse = call(graph, operator.getitem, fused, 1)
    valid = call(graph, aten.isfinite.default, lse)
    valid = call(graph, aten.logical_and.default, valid, call(graph, aten.gt.Scalar, lse, EMPTY_BELOW))
    mask = part.masks.tensors.get("atten_mask")
    if mask is not None and part.masks.plain["sparse_mode"] in (0, 1):
        sees = call(graph, aten.logical_not.default, call(graph, aten.all.dim, mask, -1, True))
        valid = call(graph, aten.logical_and.default, valid, sees)
    out = call(graph, aten.where.ScalarOther, valid, out, 0.0)
    return Attended(form, fused, out, call(graph, aten.where.ScalarOther, valid, lse, FLOOR))


def _rows(graph: fx.Graph, out: fx.Node, width: int) -> fx.Node:
    return call(graph, aten.reshape.default, call(graph, aten.to.dtype, out, torch.float32), [-1, width])


def _merged(graph: fx.Graph, outs: list[fx.Node], lses: list[fx.Node]) -> fx.Node:
    """(rows, V) attention over all parts, from (rows, V) and (rows,) of each."""
    while len(outs) > 1:
        groups = range(0, len(outs), MOST_PARTS)
        update = torch.ops.npu.npu_attention_update.default
        # update_type 1: with 0 the operator leaves its second result undefined.
        merged = [call(graph, update, lses[i : i + MOST_PARTS], outs[i : i + MOST_PARTS], 1) for i in groups]
        outs = [call(graph, operator.getitem, node, 0) for node in merged]
        lses = [call(graph, operator.getitem, node, 1) for node in merged]
    return outs[0]
