"""Attention from its definition, row by row in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    keep: Tensor,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One request: q (N, Lq, D), k (M, Lk, D), v (M, Lk, Dv), keep bool (Lq, Lk), bias (N, Lq, Lk), sink
    (N,).

    Returns (N, Lq, Dv) and the log-sum-exp (N, Lq). Keys that aren't kept are never touched.
    """
    q, k, v = q.double(), k.double(), v.double()
    heads, q_len, _ = q.shape
    out = torch.zeros(heads, q_len, v.shape[-1], dtype=torch.float64)
    lse = torch.full((heads, q_len), float("-inf"), dtype=torch.float64)
    for head in range(heads):
        kv_head = head * k.shape[0] // heads
        for row in range(q_len):
            kept = keep[row]
            scores = scale * (k[kv_head][kept] @ q[head, row])
            if bias is not None:
                scores = scores + bias[head, row][kept].double()
            terms = scores if sink is None else torch.cat([scores, sink[head].double().view(1)])
            if terms.numel() == 0:
                continue
            top = terms.max()
            total = torch.exp(terms - top).sum()
            out[head, row] = torch.exp(scores - top) @ v[kv_head][kept] / total
            lse[head, row] = top + torch.log(total)
    return out, lse


def visible(mode: int, q_len: int, kv_len: int, pre: int, following: int) -> Tensor:
    """bool (Lq, Lk): which keys a sparse mode leaves visible, a mask's values aside."""
    row = torch.arange(q_len)[:, None].expand(q_len, kv_len)
    key = torch.arange(kv_len)[None, :].expand(q_len, kv_len)
    if mode == 0:
        return (row - pre <= key) & (key <= row + following)
    if mode == 2:
        return key <= row
    if mode == 3:
        return key <= row + (kv_len - q_len)
    if mode == 4:
        own = row + (kv_len - q_len)
        return (own - pre <= key) & (key <= own + following)
    return torch.ones(q_len, kv_len, dtype=torch.bool)
