"""The new keys and values that a FlashAttention call writes to a paged cache before it attends."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.flash_calls.nodes import Nodes
from npu_compile.passes.flash_calls.schemas import FlashCall, NotTranslated
from npu_compile.passes.lower.legality import refusal
from npu_compile.passes.values import aten, shape, value

SCATTER = "npu_scatter_pa_kv_cache"


def scatter_arguments(call: FlashCall, nodes: Nodes, target: Target) -> dict[str, Any]:
    """Arguments of the scatter that writes ``k_new`` and ``v_new`` behind ``seqused_k`` keys.

    It wants every slot once. So does FlashAttention: where two requests' tables name one slot to write to,
    what it leaves there is undefined. Raises NotTranslated where the contract has no such write.
    """
    assert call.k_new is not None and call.v_new is not None
    key, value_ = (
        nodes.contiguous(nodes.call(aten.flatten.using_ints, new, 0, 1)) for new in (call.k_new, call.v_new)
    )
    arguments: dict[str, Any] = {
        "key": key,
        "value": value_,
        "key_cache": call.k,
        "value_cache": call.v,
        "slot_mapping": _slots(call, nodes),
        "cache_mode": "Norm",
    }
    if (reason := refusal(SCATTER, arguments, target)) is not None:
        raise NotTranslated(reason)
    return arguments


def _slots(call: FlashCall, nodes: Nodes) -> fx.Node:
    """(B * S_new,): table[b, j // block_size] * block_size + j % block_size of each new position j."""
    table, lengths, size = call.block_table, call.seqused_k, shape(call.k)[1]
    assert table is not None and lengths is not None and call.k_new is not None
    count = shape(call.k_new)[1]

    def make() -> fx.Node:
        behind = nodes.call(aten.arange.default, count, device=value(lengths).device)
        first = nodes.call(aten.unsqueeze.default, lengths, 1)
        positions = nodes.call(aten.add.Tensor, first, behind)
        columns = nodes.call(aten.div.Tensor_mode, positions, size, rounding_mode="floor")
        columns = nodes.call(aten._to_copy.default, columns, dtype=torch.int64)
        blocks = nodes.call(aten.gather.default, table, 1, columns)
        blocks = nodes.call(aten._to_copy.default, blocks, dtype=torch.int64)
        starts = nodes.call(aten.mul.Tensor, blocks, size)
        inside = nodes.call(aten.remainder.Scalar, positions, size)
        return nodes.call(aten.flatten.using_ints, nodes.call(aten.add.Tensor, starts, inside))

    return nodes.shared(("slots", table, lengths, size, str(count)), (table, lengths), make)
