"""The zigzag: worked numbers, and a brute-force reading of "2R blocks, rank r holds r and 2R-1-r"."""

from __future__ import annotations

import random

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.layout.zigzag import Zigzag, block_sizes, too_short


def brute_force_tokens(lengths, ranks, rank):
    """(sequence, position) of each token of ``rank``, in local order, one token at a time."""
    prev, following = [], []
    for sequence, length in enumerate(lengths):
        blocks = [[] for _ in range(2 * ranks)]
        token = 0
        for number, block in enumerate(blocks):
            while len(block) < length // (2 * ranks) + (1 if number < length % (2 * ranks) else 0):
                block.append((sequence, token))
                token += 1
        prev += blocks[rank]
        following += blocks[2 * ranks - 1 - rank]
    return prev + following


def random_batches(count=500):
    rng = random.Random(7)
    for _ in range(count):
        ranks = rng.choice((2, 3, 4))
        yield tuple(rng.randint(2 * ranks, 60) for _ in range(rng.randint(1, 4))), ranks


def test_worked_numbers():
    layout = Zigzag((10, 6), ranks=2)
    assert layout.split_list == [3, 3, 2, 2, 2, 2, 1, 1]
    assert layout.zigzag_index(0) == [0, 4, 3, 7]
    assert layout.zigzag_index(1) == [1, 5, 2, 6]
    assert (layout.prev_sizes(0), layout.next_sizes(0)) == ([3, 2], [2, 1])
    assert (layout.prev_sizes(1), layout.next_sizes(1)) == ([3, 2], [2, 1])
    assert layout.reverse_index == [0, 4, 6, 2, 1, 5, 7, 3]
    assert layout.reverse_split_len == [3, 2, 2, 1, 3, 2, 2, 1]
    assert layout.tokens_per_rank == [8, 8]


def test_tokens_lie_as_counted_one_by_one():
    for lengths, ranks in random_batches():
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        layout = Zigzag(lengths, ranks)
        for rank in range(ranks):
            expected = [starts[s] + p for s, p in brute_force_tokens(lengths, ranks, rank)]
            assert layout.token_index(rank).tolist() == expected
            assert layout.tokens(rank) == len(expected)


def test_restore_undoes_shard_and_gather():
    for lengths, ranks in random_batches():
        layout = Zigzag(lengths, ranks)
        tokens = torch.randn(sum(lengths), 3)
        rows = max(layout.tokens_per_rank) + 2
        gathered = torch.full((ranks * rows, 3), float("nan"))
        for rank in range(ranks):
            gathered[rank * rows : rank * rows + layout.tokens(rank)] = tokens[layout.token_index(rank)]
        assert torch.equal(gathered[layout.restore_index(rows)], tokens)


def test_restore_skips_rows_that_come_before_the_tokens():
    layout = Zigzag((5, 4), ranks=2)
    tokens = torch.arange(9)
    parts = [torch.cat([torch.full((7,), -1), tokens[layout.token_index(rank)]]) for rank in range(2)]
    gathered = torch.cat([torch.nn.functional.pad(part, (0, 13 - part.numel())) for part in parts])
    assert torch.equal(gathered[layout.restore_index(13, first_row=7)], tokens)


def test_reverse_index_orders_the_blocks_of_a_gather_without_padding():
    for lengths, ranks in random_batches(100):
        layout = Zigzag(lengths, ranks)
        tokens = torch.arange(sum(lengths))
        gathered = torch.cat([tokens[layout.token_index(rank)] for rank in range(ranks)])
        blocks = torch.split(gathered, layout.reverse_split_len)
        assert torch.equal(torch.cat([blocks[i] for i in layout.reverse_index]), tokens)


def test_a_single_sequence_is_the_same_code():
    layout = Zigzag((17,), ranks=2)
    assert block_sizes(17, 2) == [5, 4, 4, 4]
    assert layout.zigzag_index(0) == [0, 3]
    assert layout.token_index(0).tolist() == [0, 1, 2, 3, 4, 13, 14, 15, 16]
    assert layout.token_index(1).tolist() == [5, 6, 7, 8, 9, 10, 11, 12]


def test_work_is_balanced_for_long_sequences():
    for ranks in (2, 3, 4, 8):
        for length in range(16 * ranks, 16 * ranks + 40):
            tokens = Zigzag((length,), ranks).tokens_per_rank
            assert max(tokens) / min(tokens) <= 1.2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (((), 2), "lengths"),
        (((8, 3), 2), "sequence 1 has 3 tokens"),
        (((8, -1), 2), "lengths=-1"),
        (((8.0,), 2), "lengths=8.0"),
        (((True, 8), 2), "lengths=True"),
        (((8,), 0), "ranks=0"),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(AscendFiaError, match=named.replace("(", r"\(")):
        Zigzag(*arguments)


def test_bad_rank_and_rows_are_named():
    layout = Zigzag((10, 6), ranks=2)
    for call in (layout.zigzag_index, layout.prev_sizes, layout.next_sizes, layout.token_index):
        with pytest.raises(AscendFiaError, match="rank=2"):
            call(2)
    with pytest.raises(AscendFiaError, match="rows_per_rank=7"):
        layout.restore_index(7)


def test_too_short_names_the_sequence():
    assert too_short((4, 4), 2) is None
    assert "sequence 1 has 3 tokens, fewer than the 4 blocks of 2 ranks" in too_short((4, 3), 2)
