"""CPU kernels that merge attention over parts of the keys: by log-sum-exp, or by maximum and sum."""

from __future__ import annotations

import torch
from torch import Tensor

from ..partial_attention import EMPTY_BELOW
from .lengths import cumulative


def npu_attention_update(
    lse: list[Tensor], local_out: list[Tensor], update_type: int
) -> tuple[Tensor, Tensor]:
    """Merge parts: ``lse[i]`` (M,) float32, natural log, and ``local_out[i]`` (M, D).

    Returns the merged (M, D) in the dtype of ``local_out`` and the log-sum-exp (M,). A part whose log-sum-exp
    is infinite, NaN or the lowest float32 has no key and no weight, whatever its output holds; a row without
    any key gives 0 and -inf. With ``update_type`` 0 the second result is undefined on the device and NaN
    here.
    """
    parts = torch.stack([part.to(torch.float64) for part in lse])
    valid = torch.isfinite(parts) & (parts > EMPTY_BELOW)
    parts = parts.masked_fill(~valid, float("-inf"))
    total = torch.logsumexp(parts, 0)
    weights = torch.exp(parts - total.masked_fill(total == float("-inf"), 0.0))
    merged = torch.zeros(local_out[0].shape, dtype=torch.float64, device=local_out[0].device)
    for weight, kept, out in zip(weights.unbind(), valid.unbind(), local_out, strict=True):
        merged += (out.to(torch.float64) * weight[:, None]).masked_fill(~kept[:, None], 0.0)
    lse_out = total.to(torch.float32) if update_type == 1 else torch.full_like(lse[0], float("nan"))
    return merged.to(local_out[0].dtype), lse_out


def npu_ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge two parts by the maximum and sum of their softmax, float32, each repeated 8 times in the last
    dim.

    SBH: outputs (S, B, N * D), maxima and sums (B, N, S, 8). TND: outputs (T, N, D), maxima and sums (T, N,
    8) in the order T, N if ``input_softmax_layout`` is TND; otherwise each request's block lies as N, S and
    ``actual_seq_qlen``, cumulative with a leading 0, tells where the blocks are.
    """
    maximum = torch.maximum(prev_softmax_max, cur_softmax_max)
    finite = maximum.masked_fill(maximum == float("-inf"), 0.0)  # rows without any key, in both parts
    prev_scaled = prev_softmax_sum * torch.exp(prev_softmax_max - finite)
    cur_scaled = cur_softmax_sum * torch.exp(cur_softmax_max - finite)
    total = prev_scaled + cur_scaled
    outs = []
    for out, part in ((prev_attn_out, prev_scaled), (cur_attn_out, cur_scaled)):
        weight = (part / total).masked_fill(total == 0, 0.0)[..., 0]
        if input_layout == "SBH":
            weight = weight.permute(2, 0, 1)  # B, N, S to S, B, N
        elif input_softmax_layout != "TND":
            weight = _tokens_first(weight, actual_seq_qlen)
        rows = out.to(torch.float32).unflatten(-1, (weight.shape[-1], -1)) if input_layout == "SBH" else out
        outs.append((rows * weight.unsqueeze(-1)).reshape(out.shape))
    return (outs[0] + outs[1]).to(prev_attn_out.dtype), maximum, total


def _tokens_first(weight: Tensor, actual_seq_qlen: Tensor | None) -> Tensor:
    """(T, N) whose memory holds the requests' (N, S) blocks, as a true (T, N)."""
    tokens, heads = weight.shape
    if actual_seq_qlen is None or actual_seq_qlen.numel() == 0 or int(actual_seq_qlen[0]) != 0:
        raise ValueError("actual_seq_qlen: TND needs cumulative lengths with a leading 0")
    flat = weight.flatten()
    blocks = [
        flat[start * heads : stop * heads].reshape(heads, stop - start).t()
        for start, stop in cumulative("actual_seq_qlen", actual_seq_qlen[1:], tokens)
    ]
    return torch.cat(blocks)
