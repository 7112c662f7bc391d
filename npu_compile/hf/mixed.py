"""Decodes and prefills of one batch in calls of their own, which ascend950 needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.targets import Target
from .kv_views import PagedKV

Attend = Callable[[Tensor, PagedKV], Tensor]


def needs_split(device: torch.device) -> bool:
    """Whether the device takes a packed batch of decodes and prefills apart only (vllm-ascend)."""
    if device.type != "npu":
        return False
    from ..pipeline import npu_target

    return npu_target() is Target.ASCEND950


def attend_apart(attend: Attend, query: Tensor, view: PagedKV) -> Tensor:
    """What ``attend`` gives for requests with one query token and for the others, put together again."""
    queries = torch.diff(view.query_lengths, prepend=view.query_lengths.new_zeros(1))
    decodes = queries == 1
    if bool(decodes.all()) or not bool(decodes.any()):
        return attend(query, view)
    out = query.new_empty(*query.shape[:2], view.value_cache.shape[-1])
    for requests in (decodes, ~decodes):
        rows = requests.repeat_interleave(queries).to(query.device)
        part = replace(
            view,
            block_table=view.block_table[requests.to(view.block_table.device)],
            query_lengths=queries[requests].cumsum(0),
            kv_lengths=view.kv_lengths[requests],
            decode=requests is decodes,
        )
        out[rows] = attend(query[rows], part)
    return out
