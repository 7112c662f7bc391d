"""The expanded form with the rope part apart: FIA takes it beside the key, which is never assembled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import FIA, CallForm, by_token, contiguous, from_tokens
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.emit import emit, queries
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import Views
from npu_compile.passes.values import HEADS_FIRST, aten, same


def split(mla: MlaSite, masks: MaskArguments, target: Target, shared: Shared) -> CallForm:
    """FIA v1 with query_rope and key_rope: BNSD on the CPU; packed on a device, which takes it no other way.

    Raises:
        Declined: requests can't be packed, because not all of their keys count.
    """
    graph = mla.attention.output.graph
    tensors = dict(_tensors(graph, mla, masks))
    plain: dict[str, Any] = {
        "num_heads": mla.attention.scores.heads,
        "num_key_value_heads": mla.attention.scores.heads,
        "scale": mla.attention.scale,
    }
    if target is Target.CPU:
        one_token = same(mla.attention.scores.query, 1)
        layout = "BNSD" if one_token else "BNSD_BSND"
        to_bnsd: Views = () if one_token else HEADS_FIRST
        arguments = {**plain, "input_layout": layout, **masks.plain}
        return CallForm(FIA, {**tensors, **masks.tensors}, arguments, to_bnsd, expanded_from=mla)
    return _packed(shared, mla, masks, tensors, plain)


def _tensors(graph: fx.Graph, mla: MlaSite, masks: MaskArguments) -> Iterator[tuple[str, fx.Node]]:
    """Query, key, value and both ropes as (B, N, S, D) nodes."""
    nope, rope = queries(graph, mla, masks.mean_rows)
    yield "query", nope
    yield "key", emit(graph, mla.key_nope)
    yield "value", emit(graph, mla.attention.value)
    yield "query_rope", rope
    shared_rope = emit(graph, mla.key_rope)
    yield "key_rope", call(graph, aten.expand.default, shared_rope, [-1, mla.attention.scores.heads, -1, -1])


def _packed(
    shared: Shared,
    mla: MlaSite,
    masks: MaskArguments,
    tensors: dict[str, fx.Node],
    plain: dict[str, Any],
) -> CallForm:
    """TND: the tokens of all requests on one axis."""
    scores = mla.attention.scores
    if set(masks.tensors) - {"atten_mask"}:
        raise Declined("requests of different key lengths are not packed, and the rope part goes packed only")
    mode = masks.plain["sparse_mode"]
    if mode == 2 and same(scores.query, scores.key):
        mode = 3
    packed = {name: contiguous(by_token(node)) for name, node in tensors.items()}
    packed["actual_seq_lengths"] = shared.cumulative_lengths(scores.batch, scores.query)
    packed["actual_seq_lengths_kv"] = shared.cumulative_lengths(scores.batch, scores.key)
    arguments = {**plain, "input_layout": "TND", **masks.plain, "sparse_mode": mode}
    to_bnsd = from_tokens(scores, mla.value_up.width)
    return CallForm(FIA, {**packed, **masks.tensors}, arguments, to_bnsd, expanded_from=mla)
