"""Index writes to a paged cache stay in place and in order, with a note."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import npu_compile

HEADS, DIM, BLOCK = 2, 16, 16
TABLE = torch.tensor([[4, 1], [2, 4]], dtype=torch.int32)


def by_slots(cache: Tensor, new: Tensor, table: Tensor, position: Tensor) -> None:
    blocks = table.gather(1, (position // BLOCK)[:, None]).squeeze(1)
    cache.flatten(0, 1).index_copy_(0, blocks * BLOCK + position % BLOCK, new)


def by_block_and_offset(cache: Tensor, new: Tensor, table: Tensor, position: Tensor) -> None:
    blocks = table.gather(1, (position // BLOCK)[:, None]).squeeze(1)
    cache[blocks.long(), position % BLOCK] = new


@pytest.mark.parametrize("write", [by_slots, by_block_and_offset])
@pytest.mark.parametrize("position", [[17, 3], [5, 21]])
def test_writes_stay(write: Callable[..., None], position: list[int]) -> None:
    """Two requests' tables name block 4: at positions 5 and 21 both write to its slot 5, one after the other,
    which is what an index does and a scatter mustn't be asked to."""

    def program(
        query: Tensor, new: Tensor, keys: Tensor, values: Tensor, table: Tensor, at: Tensor
    ) -> Tensor:
        for cache in (keys, values):
            write(cache, new, table, at)
        key, value = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (keys, values))
        keep = torch.arange(key.shape[2]) <= at[:, None]
        return F.scaled_dot_product_attention(query, key, value, keep[:, None, None])

    generator = torch.Generator().manual_seed(0)
    query, new = (torch.randn(2, HEADS, 1, DIM, generator=generator) for _ in "qn")
    caches = [torch.randn(7, BLOCK, HEADS, DIM, generator=generator) for _ in "kv"]
    given = (query, new.squeeze(2)), (TABLE, torch.tensor(position))
    own = [cache.clone() for cache in caches]
    wanted = program(*given[0], *own, *given[1])
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(program, backend="ascend_fia")(*given[0], *caches, *given[1])
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    for cache, other in zip(caches, own, strict=True):
        assert torch.equal(cache, other)
    (graph,) = npu_compile.last_report().graphs
    assert [note for note in graph.notes if "writes to paged caches stay as they are" in note]
    assert [note for note in graph.notes if "read in place" in note]
