"""Prefill: this rank's tokens against all keys before them.

Local queries lie as [all prev blocks | all next blocks]. K and V (for MLA the latents) are gathered
from all ranks and put in sequence order; each half is then one packed FIA call in which every
request's queries are the last ones of its keys, which is what sparse modes 3 and 4 mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.kernels.layouts import LAYOUTS

from .collectives import Algorithm
from .fia_call import FiaCall, from_rows, to_rows
from .keys import Keys, LatentKeys, gather_keys, widened
from .metadata import Half, PrefillStep

LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = 2, 3, 4


def prefill_attention(
    call: FiaCall, step: PrefillStep, latents: LatentKeys | None = None, head_dim: int = 0
) -> Algorithm[Tensor]:
    """``call`` over the ranks; the result is this rank's output in the call's layout.

    Args:
        call: causal (sparse mode 2 or 3) or banded (4) attention of this rank's tokens over this
            rank's keys, batch 1, in any layout.
        step: this rank's part of the zigzag.
        latents: what the call's keys are expanded from, if they are: sent in their place.
        head_dim: pad the head dims with zeros up to this, for an operator that takes no others.
    """
    layout = LAYOUTS[call.input_layout]
    query, rope = (
        None if tensor is None else to_rows(tensor, layout.query, call.num_heads)
        for tensor in (call.query, call.argument("query_rope"))
    )
    assert query is not None
    keys = yield from gather_keys(call, latents, step.rows_per_rank)
    value_dim = keys.value.shape[-1]
    keys = keys.widened(head_dim)
    sizes = [step.total_q_prev_tokens, query.shape[0] - step.total_q_prev_tokens]
    queries = widened(query, head_dim).split(sizes)
    ropes = (None, None) if rope is None else rope.split(sizes)
    # Both calls read the same pages, and packed keys up to different ends.
    shared = keys.rows(step.prev.kv_rows).pages(step.block_size) if step.block_table is not None else None
    outs = [
        _half(call, step, half, part, part_rope, shared or keys.rows(half.kv_rows))
        for half, part, part_rope in zip((step.prev, step.next), queries, ropes, strict=True)
    ]
    out = torch.cat(outs)
    return from_rows(out[..., :value_dim] if head_dim else out, layout.output, 1)


def _half(
    call: FiaCall, step: PrefillStep, half: Half, query: Tensor, query_rope: Tensor | None, keys: Keys
) -> Tensor:
    packed = FiaCall(call.operator, query.contiguous(), keys.key, keys.value, call.arguments)
    out, _ = packed.with_arguments(
        input_layout="TND",
        sparse_mode=BAND if call.argument("sparse_mode") == BAND else RIGHT_DOWN_CAUSAL,
        query_rope=None if query_rope is None else query_rope.contiguous(),
        key_rope=keys.rope,
        block_table=step.block_table,
        block_size=step.block_size or None,
        **{call.names.q_lengths: half.q_lengths, call.names.kv_lengths: half.kv_lengths},
    ).run()
    return out
