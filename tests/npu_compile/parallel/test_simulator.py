from __future__ import annotations

import pytest
import torch

from npu_compile.parallel.simulator import simulate
from npu_compile.passes.context_parallel.collectives import AllGather, AllToAll


def asks(*collectives):
    return (yield collectives)


def test_collectives_mean_what_torch_distributed_means():
    gathered = simulate([asks(AllGather(torch.full((2, 3), rank))) for rank in range(3)])
    for (result,) in gathered:
        assert result[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    sent = [torch.arange(4) + 10 * rank for rank in range(2)]
    exchanged = simulate([asks(AllToAll(tensor)) for tensor in sent])
    assert [result.tolist() for (result,) in exchanged] == [[0, 1, 10, 11], [2, 3, 12, 13]]


def test_different_wishes_are_an_error_and_not_a_hang():
    with pytest.raises(RuntimeError, match=r"rank 1 asks for \['AllGather\(3,\) float32'\] while rank 0"):
        simulate([asks(AllGather(torch.zeros(2))), asks(AllGather(torch.zeros(3)))])
    with pytest.raises(RuntimeError, match="AllToAll"):
        simulate([asks(AllGather(torch.zeros(2))), asks(AllToAll(torch.zeros(2)))])


def test_a_rank_that_ends_early_is_named():
    def ends():
        return None
        yield

    with pytest.raises(RuntimeError, match=r"ranks \[1\] ended while ranks \[0\] wait"):
        simulate([asks(AllGather(torch.zeros(2))), ends()])


def test_an_exchange_that_does_not_divide_is_named():
    with pytest.raises(RuntimeError, match="not a multiple of 2"):
        simulate([asks(AllToAll(torch.zeros(3))), asks(AllToAll(torch.zeros(3)))])
