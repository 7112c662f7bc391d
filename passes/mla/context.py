"""A cache's keys in parts, each with the mask over it: chunks of the context, and the step's own tokens.

Tokens of the context are seen by all tokens of the step; among themselves the step's tokens are
causal. So no chunk needs a mask, only lengths, which FIA takes on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.emit import emit
from npu_compile.passes.mla.kept_keys import gathered, row_indices
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import Dim, ScoreShape
from npu_compile.passes.values import argument, aten


@dataclass(frozen=True)
class Part:
    """``latent`` (B, 1, C, L) and ``rope`` (B, 1, C, R) of some keys, and the mask over them."""

    latent: fx.Node
    rope: fx.Node
    masks: MaskArguments


@dataclass(frozen=True)
class Ends:
    """Key lengths, (B or 1,) int64: where they were computed, and on the host."""

    computed: fx.Node
    host: fx.Node


def parts(mla: MlaSite, masks: MaskArguments, shared: Shared, tokens: int) -> Iterator[Part]:
    """All keys in parts of at most ``tokens``, but for the step's own tokens, which are one part.

    Raises:
        Declined: the mask can't be cut.
    """
    graph, scores = mla.attention.output.graph, mla.attention.scores
    mode, mask = masks.plain["sparse_mode"], masks.tensors.get("atten_mask")
    if mode in (2, 4) or "pse_shift" in masks.tensors:
        raise Declined("this mask is not cut into chunks of the context")
    latent, rope = emit(graph, mla.latent), emit(graph, mla.key_rope)
    ends = _ends(shared, masks, scores.key)
    causal = mode == 3
    own = shared.number(scores.query) if causal else 0
    for start in range(0, int(scores.key), tokens):
        stop = min(start + tokens, int(scores.key))
        chunk = [call(graph, aten.slice.Tensor, node, 2, start, stop) for node in (latent, rope)]
        tensors = {"actual_seq_lengths_kv": _between(shared, ends, own, start, stop)}
        plain = {"sparse_mode": 0}
        if mask is not None and not causal:
            tensors["atten_mask"] = call(graph, aten.slice.Tensor, mask, -1, start, stop)
            plain = {"sparse_mode": mode}
        yield Part(chunk[0], chunk[1], replace(masks, tensors=tensors, plain=plain))
    if causal and mask is not None:
        indices = _own_indices(shared, ends, scores)
        chunk = [gathered(graph, shared, node, indices, scores.query) for node in (latent, rope)]
        tensors = {"actual_seq_lengths_kv": _own_lengths(shared, ends, scores.query), "atten_mask": mask}
        yield Part(chunk[0], chunk[1], replace(masks, tensors=tensors))


def _ends(shared: Shared, masks: MaskArguments, keys: Dim) -> Ends:
    host = masks.tensors.get("actual_seq_lengths_kv")
    if host is None:
        host = shared.equal_lengths(1, keys)
    return Ends(argument(host, 0, "lengths"), host)


def _between(shared: Shared, ends: Ends, own: object, start: int, stop: int) -> fx.Node:
    """How many keys of each request are in a chunk, the last ``own`` ones left out."""

    def make() -> fx.Node:
        context = shared.call(aten.sub.Tensor, ends.host, own)
        inside = shared.call(aten.sub.Tensor, context, start)
        return shared.call(aten.clamp.default, inside, 0, stop - start)

    return shared.host_lengths(shared.once(("between", ends.host, str(own), start, stop), make))


def _own_lengths(shared: Shared, ends: Ends, queries: Dim) -> fx.Node:
    """How many of the step's own tokens a request has, all but where it is shorter than the step."""

    def make() -> fx.Node:
        return shared.call(aten.clamp_max.default, ends.host, shared.number(queries))

    return shared.host_lengths(shared.once(("own", ends.host, str(queries)), make))


def _own_indices(shared: Shared, ends: Ends, scores: ScoreShape) -> fx.Node:
    """(B * Q,) rows of a (B * K, D) tensor: the last Q keys of each request."""

    def make() -> fx.Node:
        queries = shared.number(scores.query)
        device = ends.computed.meta["val"].device
        first = shared.call(aten.clamp_min.default, shared.call(aten.sub.Tensor, ends.computed, queries), 0)
        steps = shared.call(aten.arange.default, queries, dtype=torch.int64, device=device)
        places = shared.call(aten.add.Tensor, shared.call(aten.unsqueeze.default, first, 1), steps)
        places = shared.call(aten.clamp_max.default, places, int(scores.key) - 1)
        return row_indices(shared, places, scores.batch, scores.key)

    return shared.once(("own rows", ends.host, str(scores.query), str(scores.key)), make)
