"""Programs that gather a paged cache and attend to the copy: the rewritten graph reads the blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.paged.rewrite import read_in_place
from npu_compile.passes.recognise import recognise
from npu_compile.passes.verify import verify, writes_of
from tests.passes.graphs import aten_graph, random

ensure_graph_ops()

HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 4, 2, 16, 16, 7
TABLE = torch.tensor([[4, 1, 6], [2, 0, 3]], dtype=torch.int32)
LENGTHS = torch.tensor([33, 5])
Attention = Callable[..., Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    keep = torch.arange(key.shape[2]) < lengths[:, None]
    return F.scaled_dot_product_attention(query, key, value, keep[:, None, None], enable_gqa=True)


def by_block(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Caches (blocks, block_size, N_kv, D)."""
    key, value = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (keys, values))
    return attend(query, key, value, lengths)


def by_block_heads_first(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor
) -> Tensor:
    """Caches (blocks, N_kv, block_size, D)."""
    key, value = (cache[table].permute(0, 2, 1, 3, 4).flatten(2, 3) for cache in (keys, values))
    return attend(query, key, value, lengths)


def by_block_merged(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Caches (blocks, block_size, N_kv * D)."""
    key, value = (
        cache[table].view(2, 3 * BLOCK, KV_HEADS, DIM).transpose(1, 2).contiguous()
        for cache in (keys, values)
    )
    return attend(query, key, value, lengths)


def by_slots(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Rows (blocks * block_size, N_kv, D), read by slots made of block and offset."""
    slots = (table.long()[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    key, value = (cache.flatten(0, 1)[slots].transpose(1, 2) for cache in (keys, values))
    return attend(query, key, value, lengths)


def by_positions(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Rows, read by slots of 41 positions, one flat index for all requests."""
    position = torch.arange(41)
    slots = table[:, position // BLOCK] * BLOCK + position % BLOCK
    key, value = (
        cache.flatten(0, 1).index_select(0, slots.flatten()).view(2, 41, KV_HEADS, DIM).transpose(1, 2)
        for cache in (keys, values)
    )
    return attend(query, key, value, lengths)


def caches(*shape: int) -> tuple[Tensor, Tensor]:
    """Blocks that no request owns are full of NaN."""
    keys, values = random(*shape, seed=1), random(*shape, seed=2)
    keys[5], values[5] = float("nan"), float("nan")
    return keys, values


ROWS = (BLOCKS, BLOCK, KV_HEADS, DIM)
PROGRAMS: dict[Attention, tuple[int, ...]] = {
    by_block: ROWS,
    by_block_heads_first: (BLOCKS, KV_HEADS, BLOCK, DIM),
    by_block_merged: (BLOCKS, BLOCK, KV_HEADS * DIM),
    by_slots: ROWS,
    by_positions: ROWS,
}


def rewritten(program: Attention, *inputs: Any, target: Target = Target.CPU) -> tuple[fx.GraphModule, Any]:
    module = aten_graph(program, *inputs)
    lower(module, recognise(module.graph), target)
    writes = writes_of(module.graph)
    notes = read_in_place(module, target)
    verify(module.graph)
    assert writes_of(module.graph) == writes
    return module, notes


def fused(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if "npu_fused" in str(n.target)]


def gathers(module: fx.GraphModule) -> int:
    return sum(str(n.target).startswith(("aten.index", "aten.embedding")) for n in module.graph.nodes)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("query_len", [1, 3])
def test_blocks_are_read_in_place(program: Attention, query_len: int) -> None:
    query = random(2, HEADS, query_len, DIM)
    inputs = (query, *caches(*PROGRAMS[program]), TABLE, LENGTHS)
    module, notes = rewritten(program, *inputs)
    (call,) = fused(module)
    assert call.kwargs["block_size"] == BLOCK
    assert gathers(module) == 0
    assert notes == (f"{call.name}: keys and values are read in place, in blocks of {BLOCK}",)
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=1e-5)


def test_other_tables_and_lengths() -> None:
    """The graph follows its inputs, not what it was traced with."""
    query, (keys, values) = random(2, HEADS, 1, DIM), caches(*ROWS)
    module, _ = rewritten(by_slots, query, keys, values, TABLE, LENGTHS)
    for table, lengths in (([[0, 2, 1], [6, 4, 3]], [48, 17]), ([[3, 3, 3], [1, 1, 1]], [1, 40])):
        inputs = query, keys, values, torch.tensor(table, dtype=torch.int32), torch.tensor(lengths)
        torch.testing.assert_close(module(*inputs), by_slots(*inputs), atol=1e-5, rtol=1e-5)


def test_all_tokens_without_a_mask() -> None:
    def program(query: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> Tensor:
        key, value = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (keys, values))
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    inputs = random(2, HEADS, 1, DIM), *caches(*ROWS), TABLE.long()
    module, _ = rewritten(program, *inputs)
    assert fused(module)[0].kwargs["block_table"] is not None
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=1e-5)


def rows_as_given(query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, lengths: Tensor) -> Tensor:
    key, value = (cache.flatten(0, 1)[rows].transpose(1, 2) for cache in (keys, values))
    return attend(query, key, value, lengths)


def wrong_stride(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    slots = (table.long()[:, :, None] * (BLOCK - 1) + torch.arange(BLOCK)).flatten(1)
    return rows_as_given(query, keys, values, slots, lengths)


def backwards(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    slots = (table.long()[:, :, None] * BLOCK + torch.arange(BLOCK - 1, -1, -1)).flatten(1)
    return rows_as_given(query, keys, values, slots, lengths)


def squared(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    slots = (table.long()[:, :, None] * table.long()[:, :, None] + torch.arange(BLOCK)).flatten(1)
    return rows_as_given(query, keys, values, slots, lengths)


def other_table_for_values(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor
) -> Tensor:
    key = keys[table].flatten(1, 2).transpose(1, 2)
    return attend(query, key, values[table.flip(0)].flatten(1, 2).transpose(1, 2), lengths)


def transposed_blocks(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Token t of block c at position t * columns + c."""
    key, value = (cache[table].transpose(1, 2).flatten(1, 2).transpose(1, 2) for cache in (keys, values))
    return attend(query, key, value, lengths)


def written_in_between(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    key, value = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (keys, values))
    keys[0] = 7.0
    return attend(query, key, value, lengths)


@pytest.mark.parametrize(
    ("program", "index", "reason"),
    [
        (rows_as_given, torch.arange(96).view(2, 48), "nothing says"),
        (wrong_stride, TABLE, "isn't made of slots"),
        (backwards, TABLE, "isn't made of slots"),
        (squared, TABLE, "nothing says"),
        (other_table_for_values, TABLE, "different block tables"),
        (transposed_blocks, TABLE, "rearranged"),
        (written_in_between, TABLE, "written to"),
    ],
)
def test_left_as_it_is(program: Attention, index: Tensor, reason: str) -> None:
    def inputs() -> tuple[Tensor, ...]:
        return random(2, HEADS, 1, DIM), random(*ROWS, seed=1), random(*ROWS, seed=2), index, LENGTHS

    module, (note,) = rewritten(program, *inputs())
    assert reason in note
    assert fused(module)[0].kwargs.get("block_table") is None
    torch.testing.assert_close(module(*inputs()), program(*inputs()), atol=1e-5, rtol=1e-5)


def test_what_the_device_does_not_take_stays() -> None:
    """A block size of 16 for several query tokens, which devices need 128 for."""
    query = random(2, HEADS, 3, DIM, dtype=torch.bfloat16)
    keys, values = (cache.nan_to_num().bfloat16() for cache in caches(*ROWS))
    module, (note,) = rewritten(by_block, query, keys, values, TABLE, LENGTHS, target=Target.ASCEND910B)
    assert "block_size" in note
    assert fused(module)[0].kwargs.get("block_table") is None


def test_attention_without_a_gather_has_no_note() -> None:
    module, notes = rewritten(
        F.scaled_dot_product_attention, *[random(1, 2, 5, 16, seed=i) for i in range(3)]
    )
    assert notes == ()
    assert len(fused(module)) == 1


def test_keys_computed_from_embedded_tokens_are_not_gathered() -> None:
    def program(query: Tensor, table: Tensor, ids: Tensor, weight: Tensor) -> Tensor:
        keys = F.linear(F.embedding(ids, table), weight).view(2, 17, KV_HEADS, DIM).transpose(1, 2)
        return F.scaled_dot_product_attention(query, keys, keys, enable_gqa=True)

    ids = torch.randint(0, 54, (2, 17), generator=torch.Generator().manual_seed(5))
    inputs = random(2, HEADS, 17, DIM), random(54, 24), ids, random(KV_HEADS * DIM, 24)
    module, notes = rewritten(program, *inputs)
    assert notes == ()
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=0)
