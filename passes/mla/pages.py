"""Latents as a paged cache, which the operator demands for a head dim of 512 (torch_npu docs).

A (B, 1, S, L) tensor whose length is a multiple of the block size is one by view: request b owns
the blocks from b * S / block_size on. Other lengths are filled up, which copies the latents.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import contiguous
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.site import Dim
from npu_compile.passes.values import aten, shape

BLOCK_SIZES = (128, 16)
"""Block sizes that the operator takes here, the faster first."""


def block_size(tokens: Dim) -> int:
    """The largest one that divides ``tokens``; the smallest where none does."""
    return next((b for b in BLOCK_SIZES if isinstance(tokens, int) and tokens % b == 0), BLOCK_SIZES[-1])


def in_blocks(graph: fx.Graph, shared: Shared, node: fx.Node, block: int) -> fx.Node:
    """(B, 1, S, D) as (blocks, 1, block, D)."""
    batch, _, tokens, width = shape(node)
    missing = _missing(shared, tokens, block)
    if missing != 0:
        filling = call(graph, aten.new_zeros.default, node, [shared.number(batch), 1, missing, width])
        node = call(graph, aten.cat.default, [node, filling], 2)
    return call(graph, aten.view.default, contiguous(node), [-1, 1, block, width])


def block_table(shared: Shared, device: torch.device, batch: Dim, tokens: Dim, block: int) -> fx.Node:
    """(B, blocks per request) int32: all blocks in order."""

    def make() -> fx.Node:
        whole = shared.compute(operator.add, shared.number(tokens), _missing(shared, tokens, block))
        per_request = shared.compute(operator.floordiv, whole, block)
        count = shared.compute(operator.mul, per_request, shared.number(batch))
        ids = shared.call(aten.arange.default, count, dtype=torch.int32, device=device)
        return shared.call(aten.view.default, ids, [shared.number(batch), per_request])

    return shared.once(("table", str(batch), str(tokens), device), make)


def _missing(shared: Shared, tokens: Dim, block: int) -> Any:
    """Tokens between ``tokens`` and the next multiple of ``block``."""
    return shared.compute(operator.mod, shared.compute(operator.neg, shared.number(tokens)), block)
