from __future__ import annotations

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.layout import round_robin


def test_token_i_is_on_rank_i_mod_r_and_comes_back():
    for ranks in (1, 2, 3, 4):
        tokens = torch.randn(ranks * 17, 5)
        parts = [round_robin.shard(tokens, ranks, rank) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            assert torch.equal(part, torch.stack([t for i, t in enumerate(tokens) if i % ranks == rank]))
        assert torch.equal(round_robin.restore(torch.cat(parts), ranks), tokens)


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(AscendFiaError, match=r"tokens=7.*multiple of 2"):
        round_robin.shard(torch.zeros(7), 2, 0)
    with pytest.raises(AscendFiaError, match=r"tokens=7.*multiple of 3"):
        round_robin.restore(torch.zeros(7), 3)
