"""Attention by its definition, in float64, one sequence at a time."""

from __future__ import annotations

import torch


def causal_attention(q, k, v, scale, window=None):
    """q (Lq, N, D), k (Lk, N_kv, D), v (Lk, N_kv, Dv): the queries are the last Lq of Lk positions."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qnd,knd->nqk", q, k) * scale
    at = torch.arange(k.shape[0]).tolist()
    for i in range(q.shape[0]):
        position = k.shape[0] - q.shape[0] + i
        hidden = [j > position or (window is not None and j <= position - window) for j in at]
        scores[:, i, torch.tensor(hidden)] = float("-inf")
    return torch.einsum("nqk,knd->qnd", torch.softmax(scores, -1), v)


def full_attention(q, k, v, scale):
    """One query (N, D) against all of k (L, N_kv, D)."""
    return causal_attention(q[None], k, v, scale)[0]
