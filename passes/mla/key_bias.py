"""A bias on the scores of one query token as one more column of its keys, beside their rope part.

Attention over latents has no argument for it. But a key's own column, met by a constant in the query, adds
what it holds to the key's score, and it goes where the keys go: it can be gathered with them.
"""

from __future__ import annotations

import math

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.values import aten, same, shape, value


def with_bias(
    graph: fx.Graph, shared: Shared, mla: MlaSite, bias: fx.Node, query_rope: fx.Node, key_rope: fx.Node
) -> tuple[fx.Node, fx.Node]:
    """(B, N, 1, R + 1) and (B, 1, K, R + 1): both rope parts, with ``bias`` (B or 1, 1, 1, K) beside them."""
    scale = mla.attention.scale
    # The products are multiplied by the scale; a power of two keeps the query's part of that exact.
    constant = 2.0 ** round(-math.log2(abs(scale)))
    query = call(graph, aten.constant_pad_nd.default, query_rope, [0, 1], constant)
    column = call(graph, aten.div.Scalar, call(graph, aten.transpose.int, bias, 2, 3), scale * constant)
    column = call(graph, aten.expand.default, column, [shared.number(mla.attention.scores.batch), -1, -1, -1])
    return query, call(graph, aten.cat.default, [key_rope, column], -1)


def shared_bias(graph: fx.Graph, mla: MlaSite, masks: MaskArguments, target: Target) -> fx.Node | None:
    """(B or 1, 1, 1, K), what is added to the scaled scores; None if nothing is.

    Raises:
        Declined: no single column says it, or the target's rope part has a width of its own.
    """
    bias = masks.tensors.get("pse_shift")
    if bias is None:
        return None
    scores = mla.attention.scores
    if target is not Target.CPU or mla.attention.scale == 0:
        raise Declined("attention over latents takes no bias on the scores")
    if not same(scores.query, 1):
        raise Declined("attention over latents takes no bias on the scores of several query tokens")
    # What all heads share was expanded over them.
    if not same(scores.heads, 1) and not same(value(bias).stride(1), 0):
        raise Declined("attention over latents takes no bias that differs between heads")
    if value(bias).dtype != value(mla.key_rope.node).dtype:
        raise Declined(f"attention over latents takes no bias of {value(bias).dtype} beside its keys")
    return call(graph, aten.slice.Tensor, bias, 1, 0, 1) if not same(shape(bias)[1], 1) else bias
