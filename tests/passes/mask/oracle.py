"""Independent statements of what tests compare with: the operator's documented semantics, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def implied_keep(
    sparse_mode: int,
    pre_tokens: int,
    next_tokens: int,
    atten_mask: Tensor | None,
    lengths: Sequence[int] | None,
    batch: int,
    query: int,
    key: int,
) -> Tensor:
    """bool (B, Q, K): which keys FIA lets each row see, spelled out element by element."""
    keep = torch.zeros(batch, query, key, dtype=torch.bool)
    for b in range(batch):
        true_key = key if lengths is None else lengths[b] if len(lengths) > 1 else lengths[0]
        assert 0 <= true_key <= key, "the operator requires 0 <= actual_seq_lengths_kv <= S"
        for i in range(query):
            for j in range(true_key):
                corner = i + true_key - query
                masked = False
                if atten_mask is not None and sparse_mode in (0, 1):
                    masked = bool(atten_mask[b if atten_mask.shape[0] > 1 else 0, 0, i, j])
                if sparse_mode == 2 and query > 1:
                    masked = j > i
                if sparse_mode == 3 and query > 1:
                    masked = j > corner
                if sparse_mode == 4 and query > 1:
                    masked = not corner - pre_tokens <= j <= corner + next_tokens
                keep[b, i, j] = not masked
    return keep


def operator(scores: Tensor, keep: Tensor, bias: Tensor | None, values: Tensor) -> Tensor:
    """float64 (B, N, Q, D): softmax over the kept keys, 0 for a row without any.

    The bias is added in the precision of the scores. It must be finite: an infinity gives NaN on the device.
    """
    if bias is not None:
        assert torch.isfinite(bias).all()
        scores = scores + bias
    scores = scores.masked_fill(~keep[:, None], -torch.inf)
    return torch.softmax(scores.double(), -1).nan_to_num(0.0) @ values.double()
