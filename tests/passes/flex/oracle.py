"""flex_attention in float64, one query row at a time, with mods that are called with Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Callable[..., Any] = lambda b, h, i, j: True,
    score: Callable[..., Any] = lambda s, b, h, i, j: s,
    scale: float | None = None,
) -> Tensor:
    """(B, N, Q, D_v); ``keep`` and ``score`` get plain ints, the score is a Python float."""
    (batch, heads, rows, width), keys = q.shape, k.shape[2]
    group = heads // k.shape[1]
    out = torch.zeros(batch, heads, rows, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(rows):
                seen = [j for j in range(keys) if bool(keep(b, h, i, j))]
                logits = []
                for j in seen:
                    dot = float(q[b, h, i].double() @ k[b, h // group, j].double())
                    logits.append(float(score(dot * (scale or width**-0.5), b, h, i, j)))
                if not logits or max(logits) == -math.inf:
                    continue
                weights = torch.softmax(torch.tensor(logits, dtype=torch.float64), 0)
                out[b, h, i] = weights @ v[b, h // group, seen].double()
    return out
