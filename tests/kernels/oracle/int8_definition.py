"""Attention on int8 tensors from its definition, row by row in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def int8_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, keep: Tensor, factors: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """q (N, Lq, D), k (M, Lk, D), v (M, Lk, Dv), all int8; keep (Lq, Lk).

    ``factors``: scores are multiplied by the first, exp(score - maximum) by the second and rounded to int8,
    their product with v by the third. Returns out (N, Lq, Dv), the log-sum-exp (N, Lq) and by how much out
    may be off because a probability is within 1e-3 of a tie and may round either way.
    """
    to_score, to_stored, to_real = factors
    heads, q_len, _ = q.shape
    out = torch.zeros(heads, q_len, v.shape[-1], dtype=torch.float64)
    slack = torch.zeros_like(out)
    lse = torch.full((heads, q_len), float("-inf"), dtype=torch.float64)
    for head in range(heads):
        kv_head = head * k.shape[0] // heads
        for row in range(q_len):
            keys, values = k[kv_head][keep[row]].double(), v[kv_head][keep[row]].double()
            if not len(keys):
                continue
            scores = (keys @ q[head, row].double()) * to_score * scale
            terms = torch.exp(scores - scores.max())
            exact = terms * to_stored
            stored = exact.round().clamp(-128, 127)
            factor = to_real / terms.sum()
            out[head, row] = stored @ values * factor
            ties = ((exact - exact.floor() - 0.5).abs() < 1e-3).double()
            slack[head, row] = ties @ values.abs() * factor
            lse[head, row] = scores.max() + torch.log(terms.sum())
    return out, lse, slack
