"""Interleaved ownership against dealing tokens one at a time."""

from __future__ import annotations

import random

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.layout.interleave import Interleave


def deal(length, ranks, size):
    """owner and local index of each position, by dealing the tokens out."""
    held = [0] * ranks
    owners, local = [], []
    for position in range(length):
        rank = (position // size) % ranks
        owners.append(rank)
        local.append(held[rank])
        held[rank] += 1
    return owners, local, held


@pytest.mark.parametrize(
    ("lengths", "ranks", "size", "expected"),
    [
        ([1, 5, 8, 13, 0], 2, 1, [[1, 0], [3, 2], [4, 4], [7, 6], [0, 0]]),
        ([5, 8, 13, 300], 2, 4, [[4, 1], [4, 4], [8, 5], [152, 148]]),
        ([300], 4, 128, [[128, 128, 44, 0]]),
    ],
)
def test_worked_local_lengths(lengths, ranks, size, expected):
    layout = Interleave(ranks, size)
    local = torch.stack([layout.local_lengths(torch.tensor(lengths), rank) for rank in range(ranks)], 1)
    assert local.tolist() == expected


def test_ownership_equals_dealing():
    rng = random.Random(11)
    for _ in range(500):
        length, ranks, size = rng.randint(0, 200), rng.randint(1, 6), rng.randint(1, 40)
        layout = Interleave(ranks, size)
        owners, local, held = deal(length, ranks, size)
        positions = torch.arange(length)
        assert layout.owner(positions).tolist() == owners
        assert layout.local_index(positions).tolist() == local
        assert [int(layout.local_lengths(torch.tensor(length), rank)) for rank in range(ranks)] == held
        assert layout.capacity(length) == max(held)


def test_a_window_is_a_ring_without_stale_rows():
    """One token after another: a rank's ring holds its tokens of the last W, no more and no fewer."""
    for ranks, size, window in ((2, 1, 8), (3, 2, 12), (4, 1, 4), (2, 4, 16)):
        layout, rings = Interleave(ranks, size, window), [{} for _ in range(ranks)]
        assert layout.capacity(10**6) == window // ranks
        for position in range(3 * window + 5):
            at = torch.tensor(position)
            rings[int(layout.owner(at))][int(layout.local_index(at))] = position
            last = range(max(position + 1 - window, 0), position + 1)
            for rank, ring in enumerate(rings):
                mine = [p for p in last if p // size % ranks == rank]
                assert sorted(ring.values()) == mine
                assert int(layout.local_lengths(at + 1, rank)) == len(mine)
                assert sorted(ring) == list(range(len(mine)))


def test_windows_that_ranks_would_share_unevenly_are_named():
    with pytest.raises(AscendFiaError, match="window=9: must be a multiple of 4"):
        Interleave(2, 2, 9)
    with pytest.raises(AscendFiaError, match="window=0"):
        Interleave(2, 1, 0)


def test_positions_above_float32_precision_are_exact():
    layout = Interleave(2, 1)
    position = torch.tensor([2**24 + 1, 2**24 + 3])
    assert layout.owner(position).tolist() == [1, 1]
    assert layout.local_index(position).tolist() == [2**23, 2**23 + 1]


def test_selected_positions_become_local_and_stay_in_order():
    layout = Interleave(2, 1)
    index = torch.tensor([5, 2, -1, 4])
    assert layout.to_local(index, 0).tolist() == [1, 2, -1, -1]
    assert layout.to_local(index, 1).tolist() == [2, -1, -1, -1]


def test_selected_positions_are_covered_once():
    generator = torch.Generator().manual_seed(3)
    for size in (1, 4, 128):
        layout = Interleave(3, size)
        for _ in range(50):
            chosen = torch.randperm(700, generator=generator)[:17]
            index = torch.cat([chosen, torch.full((3,), -1)]).view(4, 5)
            back = []
            for rank in range(3):
                owners, local, _ = deal(700, 3, size)
                where = {(o, i): p for p, (o, i) in enumerate(zip(owners, local, strict=True))}
                rows = layout.to_local(index, rank)
                for row in rows.tolist():
                    valid = [i for i in row if i >= 0]
                    assert row == valid + [-1] * (5 - len(valid))
                    back += [where[(rank, i)] for i in valid]
            assert sorted(back) == sorted(chosen.tolist())


def test_bad_arguments_are_named():
    with pytest.raises(AscendFiaError, match="interleave=0"):
        Interleave(2, 0)
    with pytest.raises(AscendFiaError, match="ranks=0"):
        Interleave(0)
    with pytest.raises(AscendFiaError, match="rank=2"):
        Interleave(2).local_lengths(torch.tensor([3]), 2)
