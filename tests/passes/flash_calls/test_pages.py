"""FlashAttention calls whose keys are in pages, or are fewer than there is room for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.passes.flash_calls.calls import BLOCK, DIM, HEADS, KV_HEADS, TABLE, close, oracle, translated
from tests.passes.graphs import random

ops = torch.ops


def caches(lengths: list[int]) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Key and value cache, NaN where ``TABLE`` holds no token, and each request's keys and values."""
    keys, values = (
        [random(length, KV_HEADS, DIM, seed=10 * kind + i) for i, length in enumerate(lengths)]
        for kind in (1, 2)
    )
    stored = []
    for rows in (keys, values):
        cache = torch.full((7, BLOCK, KV_HEADS, DIM), float("nan"))
        for request, tokens in enumerate(rows):
            for position, token in enumerate(tokens):
                cache[int(TABLE[request, position // BLOCK]), position % BLOCK] = token
        stored.append(cache)
    return stored[0], stored[1], keys, values


@pytest.mark.parametrize(("queries", "layout", "mode"), [([1, 1], "BSND", 0), ([3, 1], "TND", 3)])
@pytest.mark.parametrize("used", [True, False])
def test_packed_queries_on_pages(used: bool, queries: list[int], layout: str, mode: int) -> None:
    lengths = [33, 5]
    key_cache, value_cache, keys, values = caches(lengths)
    query = random(sum(queries), HEADS, DIM)
    cu_q, cu_k = torch.tensor([0, queries[0], sum(queries)]), torch.tensor([0, 33, 38])
    longest = max(queries)

    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor, cu_q: Tensor, keys: Tensor) -> Tensor:
        counted = {"seqused_k": keys} if used else {}
        return ops.flash_attn._flash_attn_varlen_forward(
            q,
            k,
            v,
            cu_q,
            cu_q if used else keys,
            longest,
            48,
            0.0,
            DIM**-0.5,
            True,
            block_table=table,
            **counted,
        )[0]

    inputs = query, key_cache, value_cache, TABLE, cu_q, torch.tensor(lengths) if used else cu_k
    module, (outcome,) = translated(program, *inputs)
    wanted = [oracle(*one) for one in zip(query.split(queries), keys, values, strict=True)]
    close(module(*inputs), torch.cat(wanted))
    assert (outcome.input_layout, outcome.sparse_mode) == (layout, mode)


@pytest.mark.parametrize("hub", [True, False])
@pytest.mark.parametrize("new", [1, 3])
def test_new_keys_are_written_behind_the_others(new: int, hub: bool) -> None:
    lengths = [31, 5]
    key_cache, value_cache, keys, values = caches([length + new for length in lengths])
    wanted_caches = key_cache.clone(), value_cache.clone()
    old = caches(lengths)
    before_keys, before_values = (
        torch.where(torch.isnan(kept), kept, full) for kept, full in zip(old[:2], wanted_caches, strict=True)
    )
    added = [torch.stack([rows[-new:] for rows in kind]) for kind in (keys, values)]
    query = random(2, new, HEADS, DIM)

    def program(
        q: Tensor, k: Tensor, v: Tensor, kn: Tensor, vn: Tensor, used: Tensor, table: Tensor
    ) -> Tensor:
        if hub:
            none = (None,) * 4
            hub_call = ops._flash_attn2_0123abc.fwd_kvcache
            tail = (table, None, None, DIM**-0.5, True, -1, -1, 0.0, False, 0)
            return hub_call(q, k, v, kn, vn, used, *none, *tail)[0]
        return ops.flash_attn_3._flash_attn_forward(
            q, k, v, k_new=kn, v_new=vn, seqused_k=used, page_table=table, causal=True
        )[0]

    inputs = query, before_keys, before_values, *added, torch.tensor(lengths, dtype=torch.int32), TABLE
    module, (outcome,) = translated(program, *inputs)
    wanted = [oracle(*one) for one in zip(query, keys, values, strict=True)]
    close(module(*inputs), torch.stack(wanted))
    for got, full in zip((before_keys, before_values), wanted_caches, strict=True):
        torch.testing.assert_close(got, full, atol=0, rtol=0, equal_nan=True)
    assert outcome.input_layout == ("BSND" if new == 1 else "TND")


@pytest.mark.parametrize("queries", [1, 3])
def test_batch_with_lengths(queries: int) -> None:
    """A cache without pages; what is behind a request's keys is NaN."""
    q, k, v = random(2, queries, HEADS, DIM), random(2, 9, KV_HEADS, DIM, seed=1), random(2, 9, KV_HEADS, DIM)
    used = torch.tensor([4, 9])
    k[0, 4:], v[0, 4:] = float("nan"), float("nan")

    def program(q: Tensor, k: Tensor, v: Tensor, used: Tensor) -> Tensor:
        return ops.flash_attn_3._flash_attn_forward(q, k, v, seqused_k=used, causal=True)[0]

    module, _ = translated(program, q, k, v, used)
    wanted = [oracle(q[i], k[i, :n], v[i, :n]) for i, n in enumerate([4, 9])]
    close(module(q, k, v, used), torch.stack(wanted))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_sinks_on_pages(queries: int, packed: bool) -> None:
    """As many query tokens for each of two requests, packed or a batch."""
    lengths, sinks = [33, 5], random(HEADS, seed=5)
    key_cache, value_cache, keys, values = caches(lengths)
    query = random(2, queries, HEADS, DIM)
    cu_q = torch.tensor([0, queries, 2 * queries], dtype=torch.int32)

    def program(
        q: Tensor, k: Tensor, v: Tensor, s: Tensor, table: Tensor, cu: Tensor, used: Tensor
    ) -> Tensor:
        cumulative = {"cu_seqlens_q": cu, "max_seqlen_q": queries} if packed else {}
        fwd = ops._vllm_flash_attn3_0123abc.fwd
        return fwd(q, k, v, page_table=table, seqused_k=used, is_causal=True, s_aux=s, **cumulative)[0]

    given = query.flatten(0, 1) if packed else query
    inputs = given, key_cache, value_cache, sinks, TABLE, cu_q, torch.tensor(lengths)
    module, (outcome,) = translated(program, *inputs)
    wanted = [oracle(*one, sinks=sinks) for one in zip(query, keys, values, strict=True)]
    close(module(*inputs).view(query.shape), torch.stack(wanted))
    assert (outcome.input_layout, outcome.sparse_mode) == ("TND", 0 if queries == 1 else 3)
