"""Decode: every rank attends to the keys it holds, and the parts are merged by their log-sum-exp.

K/V are sharded over the ranks, so each rank needs the queries of all heads and gets, for each, the
attention over its own keys. Parts travel in one all-to-all as (heads, D + 1, rows), the lse behind
the output in float32; each rank merges its share of the heads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from npu_compile.kernels.layouts import LAYOUTS

from .collectives import Algorithm, AllGather, AllToAll
from .fia_call import FiaCall, from_rows, lse_rows, to_rows
from .merge import Lse, Partial, merge


def decode_attention(call: FiaCall, ranks: int, heads_sharded: bool = False) -> Algorithm[Tensor]:
    """``call`` over the ranks; the result is in the call's layout.

    ``call`` is attention of the step's queries over this rank's keys, without a mask. With
    ``heads_sharded`` each rank has queries for its own heads only and K/V for all of them (tensor
    parallel ranks that share their K/V heads): the queries are gathered first, and each rank's
    result is that of its own heads. Otherwise every rank has all queries and gets all results.

    MLA's output is the attention over latents here, and W_UV comes after the merge.
    """
    layout = LAYOUTS[call.input_layout]
    batch = call.query.shape[layout.query.index("B")] if "B" in layout.query else 1
    if heads_sharded:
        call = yield from _gather_heads(call, ranks, batch)
    part, divides = _local(call), call.num_heads % ranks == 0
    merged = yield from _merge_own_heads(part, ranks) if divides else _merge_everywhere(part, ranks)
    merged = merged.to(call.query.dtype)
    if divides and not heads_sharded:
        (gathered,) = yield (AllGather(merged.transpose(0, 1)),)
        merged = gathered.transpose(0, 1)
    return from_rows(merged, layout.output, batch)


def _gather_heads(call: FiaCall, ranks: int, batch: int) -> Algorithm[FiaCall]:
    """The call with the queries of all ranks' heads; query and rope go in one collective."""
    letters = LAYOUTS[call.input_layout].query
    tensors = [tensor for tensor in (call.query, call.argument("query_rope")) if tensor is not None]
    rows = [to_rows(tensor, letters, call.num_heads) for tensor in tensors]
    (gathered,) = yield (AllGather(torch.cat(rows, -1).transpose(0, 1)),)
    parts = gathered.transpose(0, 1).split([part.shape[-1] for part in rows], -1)
    query, *rope = (from_rows(part, letters, batch).contiguous() for part in parts)
    return replace(call, query=query).with_arguments(
        **{call.names.heads: call.num_heads * ranks},
        num_key_value_heads=call.num_key_value_heads,
        query_rope=rope[0] if rope else None,
    )


def _local(call: FiaCall) -> Partial:
    out, lse = call.with_arguments(**{call.names.lse: True}).run()
    letters = LAYOUTS[call.input_layout].output
    return Partial.sanitised(to_rows(out, letters, call.num_heads), Lse(lse_rows(lse, call.input_layout)))


def _merge_own_heads(part: Partial, ranks: int) -> Algorithm[Tensor]:
    """(rows, N / R, D): the merged output of this rank's heads."""
    (received,) = yield (AllToAll(_pack(part)),)
    return _merge(received, ranks)


def _merge_everywhere(part: Partial, ranks: int) -> Algorithm[Tensor]:
    """(rows, N, D) on every rank, for head counts that R doesn't divide."""
    (gathered,) = yield (AllGather(_pack(part)),)
    return _merge(gathered, ranks)


def _merge(packed: Tensor, ranks: int) -> Tensor:
    """From R parts of the same heads, one behind the other."""
    return merge([_unpack(part) for part in packed.unflatten(0, (ranks, -1)).unbind()]).out


def _pack(part: Partial) -> Tensor:
    """(N, D + 1, rows) float32."""
    return torch.cat([part.out.float(), part.lse.natural().unsqueeze(-1)], -1).permute(1, 2, 0)


def _unpack(packed: Tensor) -> Partial:
    rows = packed.permute(2, 0, 1)
    return Partial(rows[..., :-1], Lse(rows[..., -1]))
