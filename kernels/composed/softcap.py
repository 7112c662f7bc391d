"""Attention with soft-capped scores, which FIA does not do (its schemas have no such argument).

Against the program's own softmax it reads each K/V head once for its whole group of query heads, computes
nothing outside of a causal mask or a window, and holds no more than ``ROW_CHUNK`` rows of scores. Lengths in
host memory cut the keys off; lengths on a device mask them, so that a captured graph follows them.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..cpu.attend import EVERYTHING, ROW_CHUNK, Band, nothing
from ..cpu.fia import Call, Output, run
from ..cpu.masks import UNLIMITED, Mask, mask_of
from ..cpu.requests import Sequences, together
from ..cpu.tokens import Dense
from ..layouts import LAYOUTS

BNSD = LAYOUTS["BNSD"]


SCHEMA = (
    "softcap_attention(Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, "
    "Tensor? atten_mask=None, Tensor? actual_seq_lengths_kv=None, int num_heads, int num_key_value_heads, "
    "float scale, float softcap, str input_layout='BNSD', int sparse_mode=0, int pre_tokens=2147483647, "
    "int next_tokens=2147483647) -> (Tensor, Tensor)"
)


def softcap_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pse_shift: Tensor | None = None,
    atten_mask: Tensor | None = None,
    actual_seq_lengths_kv: Tensor | None = None,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    softcap: float,
    input_layout: str = "BNSD",
    sparse_mode: int = 0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
) -> tuple[Tensor, Tensor]:
    """softmax(softcap * tanh(scale * Q K^T / softcap), masked) V.

    Args:
        query, key, value: (B, N, Q, D), (B, N_kv, K, D), (B, N_kv, K, D_v), of any strides.
        actual_seq_lengths_kv: integers (B,) on any device.
        softcap: positive; the masks and ``pse_shift`` are added after it.

    Everything else is as FIA v1 has it: names, conventions, and (0,) as the second result. The softmax is
    computed in float32 for half precision. A row that sees no key gives 0.

    Raises:
        ValueError: a layout other than BNSD, a softcap that isn't positive, a sparse_mode but 0 to 4.
    """
    if input_layout != "BNSD":
        raise ValueError(f"input_layout: {input_layout!r} isn't BNSD, the one layout of softcap_attention")
    if sparse_mode == 9:
        raise ValueError("sparse_mode: softcap_attention has no tree masks, mode 9")
    if not softcap > 0:
        raise ValueError(f"softcap: {softcap} isn't positive")
    mask = mask_of(atten_mask, sparse_mode, pre_tokens, next_tokens, query.shape[2] == 1, rope=False)
    compute = partial(attend, softcap=softcap)
    lengths = actual_seq_lengths_kv
    if lengths is None or lengths.device.type == "cpu":
        dense, output = (Dense(key), Dense(value)), Output(query.dtype)
        call = Call(
            BNSD, query, *dense, value.shape[-1], scale, mask, output, False, pse_shift, None, compute
        )
        rows = Sequences("actual_seq_lengths", None).ranges(query.shape[0], query.shape[2])
        columns = Sequences("actual_seq_lengths_kv", lengths).ranges(query.shape[0], key.shape[2])
        return run(call, together(rows, columns))
    hidden = _hidden(lengths, mask, query.shape[2], key.shape[2])
    return compute(query, key, value, scale, EVERYTHING, hidden, pse_shift)


def fake_softcap_attention(query: Tensor, key: Tensor, value: Tensor, **_: object) -> tuple[Tensor, Tensor]:
    out = query.new_empty(*query.shape[:3], value.shape[3])
    return out, query.new_empty(0, dtype=torch.float32)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    band: Band = EVERYTHING,
    hidden: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """As :func:`..cpu.attend.attend`, but for the cap and the log-sum-exp, which is (0,)."""
    no_lse = q.new_empty(0, dtype=torch.float32)
    if q.numel() == 0 or k.numel() == 0:
        return nothing(q, v)[0], no_lse
    chunks = []
    for first in range(0, q.shape[2], ROW_CHUNK):
        rows = q[:, :, first : first + ROW_CHUNK]
        start, stop = band.shifted(first, 0).columns(rows.shape[2], k.shape[2])
        keys, values = k[:, :, start:stop], v[:, :, start:stop]
        if start == stop:
            chunks.append(nothing(rows, v)[0])
            continue
        scores = _capped(rows, keys, scale, softcap)
        if bias is not None:
            scores += _part(bias, first, rows.shape[2], start, stop)
        if hidden is not None:
            scores.masked_fill_(_part(hidden, first, rows.shape[2], start, stop), -torch.inf)
        local = band.shifted(first, start)
        if any(local.limits(rows.shape[2], stop - start)):
            scores.masked_fill_(local.hidden(rows.shape[2], stop - start, q.device), -torch.inf)
        weights = torch.ops.aten._safe_softmax(scores, -1).to(v.dtype)
        chunks.append(_by_group(weights, values).view(*rows.shape[:3], -1))
    out = chunks[0] if len(chunks) == 1 else torch.cat(chunks, 2)
    return out, no_lse


def _capped(q: Tensor, k: Tensor, scale: float, softcap: float) -> Tensor:
    """Scaled and capped scores (b, N, Lq, Lkv), in float32 at least."""
    scores = _by_group(q, k.mT).view(*q.shape[:3], -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.mul_(scale / softcap).tanh_().mul_(softcap)


def _by_group(rows: Tensor, shared: Tensor) -> Tensor:
    """(b, N, L, x) @ (b, N_kv, x, y): query heads that share a K/V head are rows of one product."""
    batch, kv_heads = shared.shape[:2]
    return rows.reshape(batch, kv_heads, -1, rows.shape[3]) @ shared


def _part(tensor: Tensor, first: int, rows: int, start: int, stop: int) -> Tensor:
    """Rows and columns of a tensor that broadcasts to (b, N, Lq, Lkv)."""
    if tensor.shape[2] != 1:
        tensor = tensor[:, :, first : first + rows]
    return tensor if tensor.shape[3] == 1 else tensor[..., start:stop]


def _hidden(lengths: Tensor, mask: Mask, q_len: int, kv_len: int) -> Tensor:
    """(B, 1, Lq or 1, Lkv) bool, True where a key is out of reach: beyond its request, or masked out."""
    lengths = lengths.view(-1, 1, 1, 1)
    keys = torch.arange(kv_len, device=lengths.device)
    rows = torch.arange(q_len, device=lengths.device)[:, None]
    hidden = keys >= lengths
    if mask.whole is not None:
        hidden = hidden | mask.whole.to(torch.bool)
    band = mask.band(q_len, lengths)
    if band.upper is not None:
        hidden = hidden | (keys > rows + band.upper)
    if band.lower is not None:
        hidden = hidden | (keys < rows + band.lower)
    return hidden
