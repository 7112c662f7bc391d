"""Multi-head latent attention written in every way that programs write it.

Each function takes (query (B, N, Q, P + R), latent (B, S, L), rope (B, S, R), weight (N * (P + V), L)) and
computes the same attention with the same weight, whose rows are, head by head, P of W_UK and V of W_UV.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.passes.graphs import random

B, N, Q, S, LATENT, NOPE, ROPE, VALUE = 2, 3, 5, 17, 24, 12, 8, 10
SCALE = 0.31

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def inputs(dtype: torch.dtype = torch.float32, queries: int = Q, heads: int = N) -> tuple[Tensor, ...]:
    """query, latent, rope, weight."""
    return (
        random(B, heads, queries, NOPE + ROPE, dtype=dtype),
        random(B, S, LATENT, seed=1, dtype=dtype),
        random(B, S, ROPE, seed=2, dtype=dtype),
        random(heads * (NOPE + VALUE), LATENT, seed=3, dtype=dtype) / 4,
    )


def oracle(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor, keep: Tensor | None = None) -> Tensor:
    """float64, one head and request at a time; ``keep`` (B, Q, S) is True where a key takes part."""
    query, latent, rope, weight = (t.double() for t in (query, latent, rope, weight))
    batch, heads, queries, _ = query.shape
    rows = weight.view(heads, NOPE + VALUE, LATENT)
    out = torch.zeros(batch, heads, queries, VALUE, dtype=torch.float64)
    for b in range(batch):
        for n in range(heads):
            key = torch.cat([latent[b] @ rows[n, :NOPE].T, rope[b]], -1)
            value = latent[b] @ rows[n, NOPE:].T
            scores = query[b, n] @ key.T * SCALE
            if keep is not None:
                scores = scores.masked_fill(~keep[b], float("-inf"))
            out[b, n] = scores.softmax(-1) @ value
    return out


def _expanded(latent: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
    key_nope, value = per_head.split([NOPE, VALUE], -1)
    return key_nope, value


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=SCALE)


def slice_writes(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """Transformers 5.24's own, with latents of one head."""
    latent, rope = latent.unsqueeze(1), rope.unsqueeze(1)
    batch, _, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
    key_nope, value = torch.split(per_head, [NOPE, VALUE], dim=-1)
    key = per_head.new_empty(*per_head.shape[:-1], NOPE + ROPE)
    key[..., :NOPE].copy_(key_nope)
    key[..., NOPE:].copy_(rope.expand(-1, per_head.shape[1], -1, -1))
    return _attend(query, key, value)


def assignments(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """DeepSeek's remote code: item assignment, the rope part broadcast, the query assembled the same way."""
    key_nope, value = _expanded(latent, weight)
    batch, heads, tokens, _ = key_nope.shape
    key = torch.empty(batch, heads, tokens, NOPE + ROPE, dtype=latent.dtype)
    key[:, :, :, :NOPE] = key_nope
    key[:, :, :, NOPE:] = rope.view(batch, 1, tokens, ROPE)
    whole = query.new_empty(query.shape)
    whole[:, :, :, :NOPE] = query[..., :NOPE]
    whole[:, :, :, NOPE:] = query[..., NOPE:] * 1.0
    return _attend(whole, key, value)


def cat_expand(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    key_nope, value = _expanded(latent, weight)
    shared = rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)
    parts = torch.cat([query[..., :NOPE], query[..., NOPE:].clone()], -1)
    return _attend(parts, torch.cat([key_nope, shared], -1), value)


def cat_repeat(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    key_nope, value = _expanded(latent, weight)
    shared = rope[:, None].repeat(1, key_nope.shape[1], 1, 1)
    return _attend(query, torch.cat([key_nope, shared], -1), value.contiguous())


def tokens_first(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """Everything as (B, S, N, D) until the attention."""
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE)
    shared = rope.unsqueeze(2).expand(-1, -1, per_head.shape[2], -1)
    key = torch.cat([per_head[..., :NOPE], shared], -1)
    return _attend(query, key.transpose(1, 2), per_head[..., NOPE:].transpose(1, 2))


def rope_first(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    key_nope, value = _expanded(latent, weight)
    shared = rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)
    turned = torch.cat([query[..., NOPE:], query[..., :NOPE]], -1)
    return _attend(turned, torch.cat([shared, key_nope], -1), value)


def two_projections(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """k_b_proj and v_b_proj apart; their weights are slices of one."""
    batch, tokens, _ = latent.shape
    heads = weight.shape[0] // (NOPE + VALUE)
    per_head = weight.view(heads, NOPE + VALUE, LATENT)
    keys = F.linear(latent, per_head[:, :NOPE].reshape(-1, LATENT))
    values = F.linear(latent, per_head[:, NOPE:].reshape(-1, LATENT))
    key_nope = keys.view(batch, tokens, heads, NOPE).transpose(1, 2)
    value = values.view(batch, tokens, heads, VALUE).transpose(1, 2)
    shared = rope.unsqueeze(1).expand(-1, heads, -1, -1)
    return _attend(query, torch.cat([key_nope, shared], -1), value)


def by_hand(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """matmul, softmax, matmul."""
    key_nope, value = _expanded(latent, weight)
    shared = rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)
    key = torch.cat([key_nope, shared], -1)
    scores = torch.matmul(query, key.transpose(2, 3)) * SCALE
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype), value)


def by_einsum(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """(B, S, N, D) and einsum throughout."""
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, NOPE + VALUE)
    key_nope, value = per_head.split([NOPE, VALUE], -1)
    key = torch.cat([key_nope, rope.unsqueeze(2).expand(-1, -1, per_head.shape[2], -1)], -1)
    scores = torch.einsum("bnqd,bknd->bnqk", query, key) * SCALE
    return torch.einsum("bnqk,bknd->bnqd", scores.softmax(-1), value)


def cut_cache(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    """The whole cache is expanded and its first tokens used, as transformers does in a first prefill."""
    longer = torch.cat([latent, torch.full_like(latent, 7.0)], 1).unsqueeze(1)
    longer_rope = torch.cat([rope, torch.full_like(rope, 7.0)], 1).unsqueeze(1)
    key_nope, value = _expanded(longer[:, 0], weight)
    key = key_nope.new_empty(*key_nope.shape[:-1], NOPE + ROPE)
    key[..., :NOPE].copy_(key_nope)
    key[..., NOPE:].copy_(longer_rope.expand(-1, key_nope.shape[1], -1, -1))
    tokens = latent.shape[1]
    return _attend(query, key[:, :, :tokens], value[:, :, :tokens])


SPELLINGS: tuple[Attention, ...] = (
    slice_writes,
    assignments,
    cat_expand,
    cat_repeat,
    tokens_first,
    rope_first,
    by_hand,
    by_einsum,
    cut_cache,
)
