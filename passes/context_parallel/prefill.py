"""Prefill: this rank's tokens against all keys before them.

Local queries lie as [all prev blocks | all next blocks]. K and V (for MLA the latents) are gathered
from all ranks and put in sequence order; each half is then one packed FIA call in which every
request's queries are the last ones of its keys, which is what sparse modes 3 and 4 mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npu_compile.kernels.layouts import LAYOUTS

from .collectives import Algorithm, AllGather
from .fia_call import FiaCall, from_rows, to_rows
from .metadata import Half, PrefillStep

LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND = 2, 3, 4


def prefill_attention(call: FiaCall, step: PrefillStep) -> Algorithm[Tensor]:
    """``call`` over the ranks.

    ``call`` is causal (sparse mode 2 or 3) or banded (4) attention of this rank's tokens over this
    rank's keys, batch 1, in any layout. The result is this rank's output in the call's layout.
    """
    layout = LAYOUTS[call.input_layout]
    query = to_rows(call.query, layout.query, call.num_heads)
    query_rope = _rope_rows(call, "query_rope", call.num_heads)
    keys = yield from _gather_keys(call, step.rows_per_rank)
    sizes = [step.total_q_prev_tokens, query.shape[0] - step.total_q_prev_tokens]
    queries = query.split(sizes)
    ropes = query_rope.split(sizes) if query_rope is not None else (None, None)
    outs = [
        _half(call, half, part, rope, keys)
        for half, part, rope in zip((step.prev, step.next), queries, ropes, strict=True)
    ]
    return from_rows(torch.cat(outs), layout.output, 1)


def _gather_keys(call: FiaCall, rows_per_rank: int) -> Algorithm[tuple[Tensor, Tensor, Tensor | None]]:
    """K, V and the key's rope of all ranks, rank-major, each rank's padded to ``rows_per_rank``.

    V comes first, being ready before K is rotated; a latent that is both is gathered once.
    """
    letters, heads = LAYOUTS[call.input_layout].query, call.num_key_value_heads
    rope = call.argument("key_rope")
    tensors = [call.key] if call.value is call.key else [call.value, call.key]
    tensors += [] if rope is None else [rope]
    rows = [_padded(to_rows(tensor, letters, heads), rows_per_rank) for tensor in tensors]
    gathered = list((yield tuple(AllGather(part) for part in rows)))
    gathered_rope = gathered.pop() if rope is not None else None
    return gathered[-1], gathered[0], gathered_rope


def _half(
    call: FiaCall,
    half: Half,
    query: Tensor,
    query_rope: Tensor | None,
    keys: tuple[Tensor, Tensor, Tensor | None],
) -> Tensor:
    key, value, key_rope = keys
    restored = key.index_select(0, half.kv_rows)
    packed = FiaCall(
        call.operator,
        query.contiguous(),
        restored,
        restored if value is key else value.index_select(0, half.kv_rows),
        call.arguments,
    )
    out, _ = packed.with_arguments(
        input_layout="TND",
        sparse_mode=BAND if call.argument("sparse_mode") == BAND else RIGHT_DOWN_CAUSAL,
        query_rope=None if query_rope is None else query_rope.contiguous(),
        key_rope=None if key_rope is None else key_rope.index_select(0, half.kv_rows),
        **{call.names.q_lengths: half.q_lengths, call.names.kv_lengths: half.kv_lengths},
    ).run()
    return out


def _rope_rows(call: FiaCall, name: str, heads: int) -> Tensor | None:
    rope = call.argument(name)
    return None if rope is None else to_rows(rope, LAYOUTS[call.input_layout].query, heads)


def _padded(rows: Tensor, rows_per_rank: int) -> Tensor:
    """``rows`` followed by zeros; a step whose metadata counts fewer rows than there are is an error."""
    return torch.cat([rows, rows.new_zeros(rows_per_rank - rows.shape[0], *rows.shape[1:])])
