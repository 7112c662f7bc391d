"""Blocks move bit for bit, and nothing else does."""

from __future__ import annotations

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.kernels.targets import Target
from npu_compile.serving import PagedKVPool


def filled(blocks: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> PagedKVPool:
    pool = PagedKVPool.allocate(blocks, 16, 2, 8, dtype)
    pool.memory.copy_(torch.randn(pool.memory.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


def test_copies_read_before_they_write() -> None:
    """A block that is overwritten and copied at once gives what it held."""
    pool = filled(5)
    before = pool.memory.clone()
    pool.copy_blocks([(0, 3), (3, 1), (1, 2)])
    for block, source in enumerate([0, 3, 1, 0, 4]):
        assert torch.equal(pool.keys[block], before[0, source])
        assert torch.equal(pool.values[block], before[1, source])


def test_out_and_back() -> None:
    pool, host = filled(6), filled(3, 1)
    before = pool.memory.clone()
    pool.swap_blocks(host, [(4, 0), (2, 2)])
    pool.memory[:, [4, 2]] = float("nan")
    host.swap_blocks(pool, [(0, 4), (2, 2)])
    assert torch.equal(pool.memory, before)


def test_shape() -> None:
    pool = PagedKVPool.allocate(7, 128, 3, 64, target=Target.ASCEND910B)
    assert pool.memory.shape == (2, 7, 128, 3, 64)
    assert pool.keys.flatten(2).shape == (7, 128, 192)
    assert pool.keys.flatten(2).data_ptr() == pool.memory.data_ptr()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (2, 1)], "no destination block is named twice"),
        ([(0, 5)], "destination block=5: the pool has blocks 0 to 4"),
        ([(-1, 0)], "source block=-1"),
    ],
)
def test_bad_pairs_change_nothing(pairs: list[tuple[int, int]], message: str) -> None:
    pool = filled(5)
    before = pool.memory.clone()
    with pytest.raises(AscendFiaError, match=message):
        pool.copy_blocks(pairs)
    assert torch.equal(pool.memory, before)


def test_pools_that_differ() -> None:
    with pytest.raises(AscendFiaError, match=r"blocks are \(16, 2, 8\)"):
        filled(2).swap_blocks(PagedKVPool.allocate(2, 32, 2, 8), [(0, 0)])
    with pytest.raises(AscendFiaError, match=r"destination=torch.float16: it is torch.bfloat16"):
        filled(2).swap_blocks(filled(2, dtype=torch.float16), [(0, 0)])


@pytest.mark.parametrize(("size", "target"), [(24, Target.CPU), (0, Target.CPU), (16, Target.ASCEND910B)])
def test_bad_block_size(size: int, target: Target) -> None:
    with pytest.raises(AscendFiaError, match=f"block_size={size}: on {target.value}"):
        PagedKVPool.allocate(4, size, 2, 8, target=target)
