"""Keys that a mask leaves, moved to the front: a mask of one query token becomes a length.

The order of keys means nothing to a single query, their positions being in the keys already. So
where the operator takes lengths only, a masked latent cache is gathered (one row of L + R a
token, small beside what expanding it would cost) instead of being expanded.
"""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.site import Dim
from npu_compile.passes.values import aten, shape


def kept_first(shared: Shared, mask: fx.Node, batch: Dim, keys: Dim) -> tuple[fx.Node, fx.Node]:
    """For a (B or 1, 1, 1, K) mask, True where masked out: (B * K,) indices, (B or 1,) lengths on the host.

    The indices are of rows of a (B * K, D) tensor; each request's kept keys come first, in order.
    """

    def indices() -> fx.Node:
        rows = shared.call(aten.reshape.default, mask, [-1, shared.number(keys)])
        order = shared.call(
            aten.argsort.stable, shared.call(aten.to.dtype, rows, torch.int32), stable=True, dim=-1
        )
        return row_indices(shared, order, batch, keys)

    def lengths() -> fx.Node:
        kept = shared.call(aten.logical_not.default, mask)
        return shared.call(aten.reshape.default, shared.call(aten.sum.dim_IntList, kept, [-1]), [-1])

    return (
        shared.once(("kept", mask), indices),
        shared.host_lengths(shared.once(("kept lengths", mask), lengths)),
    )


def row_indices(shared: Shared, places: fx.Node, batch: Dim, keys: Dim) -> fx.Node:
    """(B * count,) rows of a (B * K, D) tensor, from (B or 1, count) places in the keys of each request."""
    requests = shared.call(aten.arange.default, shared.number(batch), device=places.meta["val"].device)
    starts = shared.call(aten.mul.Tensor, requests, shared.number(keys))
    every = shared.call(aten.add.Tensor, places, shared.call(aten.unsqueeze.default, starts, 1))
    return shared.call(aten.reshape.default, every, [-1])


def gathered(graph: fx.Graph, shared: Shared, node: fx.Node, indices: fx.Node, count: Dim) -> fx.Node:
    """(B, 1, count, D): rows of a (B, 1, K, D) tensor by their (B * count,) indices in (B * K, D)."""
    batch, width = shape(node)[0], shape(node)[3]
    rows = call(graph, aten.flatten.using_ints, node, 0, 2)  # a reshape to -1 can't be of no width
    picked = call(graph, aten.index_select.default, rows, 0, indices)
    return call(graph, aten.view.default, picked, [shared.number(batch), 1, shared.number(count), width])
