"""CPU kernel of npu_fusion_attention, the forward of attention in training."""

from __future__ import annotations

import torch
from torch import Tensor

from .attend import attend
from .lengths import cumulative
from .masks import NO_MASK, bias_of, mask_of
from .requests import Request, one_by_one, together
from .views import as_bnsd, from_bnsd

REPEATS = 8
"""The device stores maximum and sum of the softmax this often, next to each other."""

LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")
MODES = (0, 1, 2, 3, 4)

ROWS = 256
"""Rows whose scores are held at once to find their maximum."""


def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """softmax(mask(scale * (pse + Q K^T))) V: unlike in FIA, ``pse`` is scaled. There is no dropout here.

    Returns the output in ``input_layout``; maximum and sum of the softmax, float32, each repeated 8 times in
    a last dim: (B, N, S, 8), for TND (T, N, 8) with each request's block lying as N, S unless
    ``softmax_layout`` is TND; an empty tensor and three zeros, which belong to dropout. Without
    ``atten_mask`` nothing is masked, whatever ``sparse_mode`` says. For TND the lengths are cumulative, and
    requests of length 0 at the end, given as 0, are left out. Raises NotImplementedError for dropout, sinks,
    the modes 5 to 8 and ``pse`` with TND.
    """
    if keep_prob != 1.0 or dropout_mask is not None or padding_mask is not None or sink is not None:
        raise NotImplementedError("keep_prob < 1, dropout_mask, padding_mask and sink have no CPU reference")
    if sparse_mode not in MODES and atten_mask is not None:
        raise NotImplementedError(f"sparse_mode: {sparse_mode} has no CPU reference, {MODES} have")
    if pse is not None and input_layout == "TND":
        raise NotImplementedError("pse: its form for TND isn't documented")
    if input_layout not in LAYOUTS:
        raise ValueError(f"input_layout: {input_layout!r} isn't one of {', '.join(LAYOUTS)}")
    q, k, v = _views(query, key, value, head_num, input_layout)
    mask = NO_MASK
    if atten_mask is not None:
        mask = mask_of(atten_mask, sparse_mode, pre_tockens, next_tockens, one_token=False, rope=False)
    batch, heads, q_len, _ = q.shape
    out = q.new_zeros(batch, heads, q_len, v.shape[-1])
    statistics = torch.zeros(2, batch, heads, q_len, dtype=torch.float32, device=query.device)
    statistics[0] = float("-inf")
    requests = _requests(q, k, input_layout, actual_seq_qlen, actual_seq_kvlen)
    for request in requests:
        rows, keys, values = request.query.of(q), request.key.of(k), request.key.of(v)
        kv_len = keys.shape[2]
        bias = None if pse is None else _bias(pse, request, q_len, kv_len)
        band, hidden = mask.band(request.q_len, kv_len), mask.hidden(request, kv_len, 0)
        scaled = None if bias is None else bias.to(torch.float32) * scale
        part, lse = attend(rows, keys, values, scale, band, hidden, scaled)
        request.query.of(out).copy_(part)
        maximum = _maximum(rows, keys, scale, band.hidden(request.q_len, kv_len, q.device), hidden, scaled)
        total = torch.exp(lse - maximum).masked_fill(lse == float("-inf"), 0.0)
        request.query.of(statistics[0].unsqueeze(-1)).copy_(maximum.unsqueeze(-1))
        request.query.of(statistics[1].unsqueeze(-1)).copy_(total.unsqueeze(-1))
    result = from_bnsd(out, "BSH" if input_layout == "SBH" else input_layout)
    if input_layout == "SBH":
        result = result.transpose(0, 1).contiguous()
    maximum, total = (_repeated(s, requests, input_layout == "TND", softmax_layout) for s in statistics)
    return result, maximum, total, query.new_empty(0), 0, 0, 0


def _views(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, S, D) views."""
    if layout == "SBH":
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    if layout not in ("BSH", "SBH"):
        q, k, v = (as_bnsd(t, layout, 0) for t in (query, key, value))
    else:
        kv_heads = key.shape[-1] // (query.shape[-1] // heads)
        q, k, v = (as_bnsd(t, "BSH", n) for t, n in ((query, heads), (key, kv_heads), (value, kv_heads)))
    if q.shape[1] != heads or heads % max(1, k.shape[1]):
        raise ValueError(f"head_num: {heads}, but query has {q.shape[1]} heads and key {k.shape[1]}")
    return q, k, v


def _requests(
    q: Tensor, k: Tensor, layout: str, q_lengths: list[int] | None, kv_lengths: list[int] | None
) -> list[Request]:
    batch, packed = q.shape[0], layout == "TND"
    if not packed:
        return together([(0, q.shape[2])] * batch, [(0, k.shape[2])] * batch)
    if q_lengths is None or kv_lengths is None:
        raise ValueError("actual_seq_qlen, actual_seq_kvlen: TND needs both, got None")
    count = len(q_lengths)
    while count and q_lengths[count - 1] == 0:
        count -= 1
    totals = (q.shape[2], k.shape[2])
    if count < len(q_lengths):
        totals = (q_lengths[count - 1] if count else 0, kv_lengths[count - 1] if count else 0)
    queries = cumulative("actual_seq_qlen", q_lengths[:count], totals[0])
    return one_by_one(queries, cumulative("actual_seq_kvlen", kv_lengths[:count], totals[1]), True, None)


def _bias(pse: Tensor, request: Request, q_len: int, kv_len: int) -> Tensor:
    """(1 or b, N, Lq, kv_len) of a (1 or B, N, S or 1, S_kv) tensor."""
    if pse.dim() != 4 or pse.shape[2] not in (1, q_len):
        raise NotImplementedError(f"pse: {tuple(pse.shape)} isn't (B or 1, N, {q_len} or 1, S_kv)")
    return bias_of(pse.expand(-1, -1, q_len, -1), request, kv_len)


def _maximum(
    q: Tensor, k: Tensor, scale: float, outside: Tensor, hidden: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The largest score that each row (b, N, Lq) sees, -inf if it sees none."""
    batch, heads, q_len, dim = q.shape
    outside = outside if hidden is None else outside | hidden
    maxima = q.new_full((batch, heads, q_len), float("-inf"), dtype=torch.float32)
    for first in range(0, q_len if k.shape[2] else 0, ROWS):
        rows = q[:, :, first : first + ROWS].to(torch.float32)
        grouped = rows.reshape(batch, k.shape[1], -1, dim)
        scores = (grouped @ k.to(torch.float32).mT).reshape(batch, heads, rows.shape[2], -1) * scale
        if bias is not None:
            scores = scores + bias[:, :, first : first + ROWS]
        hide = outside[..., first : first + ROWS, :]
        maxima[:, :, first : first + ROWS] = scores.masked_fill(hide, float("-inf")).amax(-1)
    return maxima


def _repeated(statistic: Tensor, requests: list[Request], packed: bool, softmax_layout: str) -> Tensor:
    """A statistic (B, N, S) as the device returns it."""
    if not packed:
        return statistic.unsqueeze(-1).repeat(1, 1, 1, REPEATS)
    tokens_first = statistic[0].t().contiguous()
    if softmax_layout != "TND":
        blocks = [request.query.of(statistic.unsqueeze(-1)).flatten() for request in requests]
        used = torch.cat(blocks) if blocks else statistic.new_empty(0)
        flat = torch.cat([used, statistic.new_zeros(tokens_first.numel() - used.numel())])
        tokens_first = flat.view(tokens_first.shape)
    return tokens_first.unsqueeze(-1).repeat(1, 1, REPEATS)
