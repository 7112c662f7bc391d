"""Attention in float64, one query row at a time, straight from its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_row(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, sink: float | None = None
) -> Tensor:
    """One query (D,) over the keys (K, D) it sees and their values (K, Dv)."""
    scores = [scale * float(torch.dot(query.double(), key.double())) for key in keys]
    top = max([*scores, *([] if sink is None else [sink])], default=0.0)
    weights = [torch.tensor(score - top).double().exp() for score in scores]
    total = sum(weights, torch.zeros((), dtype=torch.float64))
    if sink is not None:
        total = total + torch.tensor(sink - top).double().exp()
    out = torch.zeros(values.shape[-1], dtype=torch.float64)
    for weight, value in zip(weights, values, strict=True):
        out += weight / total * value.double()
    return out


def attend_request(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    sinks: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """(Lq, N, D) over (Lkv, N_kv, D): the queries are the last tokens, each sees those up to itself."""
    q_len, heads = query.shape[:2]
    group = heads // keys.shape[1]
    out = torch.zeros(q_len, heads, values.shape[-1], dtype=torch.float64)
    for row in range(q_len):
        last = keys.shape[0] - q_len + row
        first = 0 if window is None else max(0, last - window + 1)
        for head in range(heads):
            seen = slice(first, last + 1)
            sink = None if sinks is None else float(sinks[head])
            out[row, head] = attend_row(
                query[row, head], keys[seen, head // group], values[seen, head // group], scale, sink
            )
    return out
