"""The sharded cache by itself: where rows go, and what the model is given."""

from __future__ import annotations

import pytest
import torch

from npu_compile.parallel.cache import CacheStep, rows_for, sharded_cache, sharded_layers
from npu_compile.parallel.exchange import keep_own, plan_exchange, store_own
from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.layout.zigzag import Zigzag


def layer_of(batch, rows):
    cache = sharded_cache([0], [rows], CacheStep.for_prefill(torch.device("cpu")), batch)
    return cache, sharded_layers(cache)[0]


@pytest.mark.parametrize("capacity", [1, 31, 100, 160, 500, 1279, 1280, 4096])
def test_rows_are_blocks_where_that_takes_little_memory(capacity):
    rows = rows_for(capacity)
    assert capacity < rows <= max(capacity + 1, capacity * 1.1)
    assert capacity < 160 or rows % 16 == 0
    assert capacity < 1300 or rows % 128 == 0


def test_decode_writes_one_row_a_sequence_and_returns_all():
    cache, layer = layer_of(2, 5)
    layer.store(*(torch.zeros(1, 3, 4),) * 2, torch.tensor([0]), torch.tensor([0]))
    layer.step.to_decode(torch.tensor([2, 4]))
    new = torch.randn(2, 3, 1, 4)
    keys, values = cache.update(new, new + 1, 0)
    expected = torch.zeros(2, 3, 5, 4)
    expected[0, :, 2], expected[1, :, 4] = new[0, :, 0], new[1, :, 0]
    assert torch.equal(keys, expected) and keys is layer.keys
    assert torch.equal(values[0, :, 2], new[0, :, 0] + 1)
    assert cache.get_mask_sizes(1, 0) == (5, 0) and cache.get_seq_length() == 4


def test_prefill_keeps_new_tokens_aside_and_returns_them_behind_the_cached():
    cache, layer = layer_of(2, 5)
    new = torch.randn(1, 3, 6, 4)
    keys, _ = cache.update(new, new + 1, 0)
    assert keys is new and cache.get_mask_sizes(6, 0) == (6, 0)
    assert layer.take_fresh()[0] is new
    cached = torch.randn(2, 3, 4)
    layer.store(cached, cached, torch.tensor([1, 0]), torch.tensor([3, 2]))
    layer.step.to_prefill(torch.tensor([[0, 1], [2, 3]]))
    keys, _ = cache.update(new, new, 0)
    assert torch.equal(keys[0, :, :2], torch.stack([cached[1], cached[0]], 1))
    assert torch.equal(keys[0, :, 2:], new[0]) and cache.get_mask_sizes(6, 0) == (8, 0)


def test_exchange_brings_every_token_to_its_keeper():
    """Packed tokens are numbered; each rank's received rows must be the ones it keeps, in place."""
    for lengths, prefix, interleave in (([10, 6], [3, 0], 1), ([17, 9, 8], [0, 5, 70], 4)):
        for ranks in (2, 3):
            cache, layout = Interleave(ranks, interleave), Zigzag(tuple(lengths), ranks)
            tokens = [(s, prefix[s] + i) for s, length in enumerate(lengths) for i in range(length)]
            plans = [plan_exchange(lengths, prefix, rank, cache) for rank in range(ranks)]
            sent = []
            for rank, plan in enumerate(plans):
                local = [tokens[i] for i in layout.token_index(rank).tolist()]
                rows = [local[i] for i in plan.send.tolist()]
                ends = torch.tensor(plan.send_sizes).cumsum(0).tolist()
                sent.append([rows[start:end] for start, end in zip([0, *ends], ends, strict=False)])
            for rank, plan in enumerate(plans):
                received = [token for sender in range(ranks) for token in sent[sender][rank]]
                assert [len(sent[sender][rank]) for sender in range(ranks)] == plan.receive_sizes
                assert [s for s, _ in received] == plan.sequences.tolist()
                mine = [p for _, p in received]
                assert all(p // interleave % ranks == rank for p in mine)
                held = [sum(q // interleave % ranks == rank for q in range(p)) for p in mine]
                assert held == plan.rows.tolist()
            assert sum(len(plan.rows) for plan in plans) == len(tokens)


def test_layers_with_a_window_get_its_tokens_only():
    """What ranks receive for their rings: the last tokens of each sequence, each in a row of its own."""
    lengths, window = [17, 9, 5], 8
    tokens = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
    for interleave in (1, 2):
        cache, layout = Interleave(2, interleave, window), Zigzag(tuple(lengths), 2)
        plans = [plan_exchange(lengths, [0, 0, 0], rank, cache) for rank in range(2)]
        stored = []
        for rank, plan in enumerate(plans):
            received = []
            for sender, theirs in enumerate(plans):
                local = [tokens[i] for i in layout.token_index(sender).tolist()]
                sent = [local[i] for i in theirs.send.tolist()]
                assert sum(theirs.send_sizes) == len(sent)
                received += sent[sum(theirs.send_sizes[:rank]) : sum(theirs.send_sizes[: rank + 1])]
            assert [s for s, _ in received] == plan.sequences.tolist()
            assert all(p // interleave % 2 == rank for _, p in received)
            places = list(zip(plan.sequences.tolist(), plan.rows.tolist(), strict=True))
            assert len(set(places)) == len(places) and int(plan.rows.max()) < window // 2
            own = keep_own(lengths, rank, cache)
            whole = list(zip(own.sequences.tolist(), own.positions.tolist(), own.rows.tolist(), strict=True))
            assert whole == sorted((s, p, row) for (s, p), (_, row) in zip(received, places, strict=True))
            stored += received
        assert sorted(stored) == [(s, p) for s, p in tokens if p >= lengths[s] - window]


def test_each_rank_stores_its_own_of_what_all_have():
    lengths, states = [5, 3], torch.arange(2 * 2 * 5 * 1.0).view(2, 2, 5, 1)
    for rank in range(2):
        cache, layer = layer_of(2, 4)
        cache.update(states, states, 0)
        store_own(layer, keep_own(lengths, rank, Interleave(2)))
        for sequence, length in enumerate(lengths):
            mine = [p for p in range(length) if p % 2 == rank]
            assert torch.equal(layer.keys[sequence, :, : len(mine)], states[sequence, :, mine])
            assert not layer.keys[sequence, :, len(mine) :].any()
