from __future__ import annotations

import random

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.layout import DualChunkSwap


def test_worked_numbers():
    layout = DualChunkSwap((7,), ranks=2)
    assert layout.token_index(0).tolist() == [0, 1, 6]
    assert layout.token_index(1).tolist() == [2, 3, 4, 5]
    assert layout.restore_index.tolist() == [0, 1, 4, 5, 6, 7, 2]
    assert layout.gather_index.tolist() == [0, 1, 6, 0, 2, 3, 4, 5]
    assert layout.written.tolist() == [True, True, True, False, True, True, True, True]


def test_decode_requests_are_on_every_rank_and_written_once():
    layout = DualChunkSwap((1, 1, 7), ranks=2, decodes=2)
    assert layout.token_index(0).tolist() == [0, 1, 2, 3, 8]
    assert layout.token_index(1).tolist() == [0, 1, 4, 5, 6, 7]
    assert layout.padded_tokens == 6
    assert layout.restore_index.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 4]
    assert layout.written.tolist() == [True] * 5 + [False] * 3 + [True] * 4


def test_gather_and_restore_are_inverse_for_any_lengths():
    rng = random.Random(5)
    for _ in range(300):
        ranks, decodes = rng.choice((1, 2, 3, 4)), rng.randint(0, 3)
        lengths = (1,) * decodes + tuple(rng.randint(1, 30) for _ in range(rng.randint(1, 4)))
        layout = DualChunkSwap(lengths, ranks, decodes)
        tokens = torch.arange(sum(lengths))
        gathered = torch.full((ranks, layout.padded_tokens), -1)
        for rank in range(ranks):
            index = layout.token_index(rank)
            assert len(set(index.tolist())) == index.numel()
            gathered[rank, : index.numel()] = tokens[index]
        gathered = gathered.flatten()
        assert torch.equal(gathered[layout.restore_index], tokens)
        assert torch.equal(tokens[layout.gather_index][gathered >= 0], gathered[gathered >= 0])
        assert sorted(gathered[layout.written].tolist()) == tokens.tolist()


def test_bad_arguments_are_named():
    with pytest.raises(AscendFiaError, match="decodes=3"):
        DualChunkSwap((1, 1), 2, decodes=3)
    with pytest.raises(AscendFiaError, match="rank=2"):
        DualChunkSwap((7,), 2).token_index(2)
