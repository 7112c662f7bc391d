"""Writing and reading paged K/V caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle import caches
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu
STORED = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def numbers(draw: Draw, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == torch.int8:
        return draw.integers(*shape, low=-128, high=128, dtype=dtype)
    return draw.normal(*shape, dtype=dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit, NaN included."""
    return torch.equal(a.nan_to_num(99.0), b.nan_to_num(99.0)) and torch.equal(a.isnan(), b.isnan())


def scatter_call(draw: Draw) -> dict[str, Any]:
    nz, dtype = draw.maybe(), draw.one_of(*STORED)
    blocks, block_size, heads = draw.size(1, 4), draw.one_of(16, 17), draw.size(1, 3)
    width = 8
    dims = [draw.one_of(8, 24) if nz else draw.one_of(5, 8, 17) for _ in range(2)]
    tokens = draw.size(0, min(9, blocks * block_size))
    return {
        "nz": nz,
        "plain_mode": draw.one_of("Norm", None),
        "rows": [numbers(draw, dtype, tokens, heads, dim) for dim in dims],
        "caches": [
            numbers(draw, dtype, *caches.shape(blocks, block_size, heads, dim, nz, width)) for dim in dims
        ],
        "slots": draw.distinct(tokens, blocks * block_size, draw.one_of(torch.int32, torch.int64)),
    }


@EXAMPLES
def test_scatter_writes_exactly_the_slots(examples: int) -> None:
    def check(call: dict[str, Any]) -> None:
        want = [cache.clone() for cache in call["caches"]]
        for rows, cache in zip(call["rows"], want, strict=True):
            for row, slot in zip(rows, call["slots"].tolist(), strict=True):
                caches.put(cache, slot, row, call["nz"])
        mode = "PA_NZ" if call["nz"] else (call["slots"].numel() % 2 and "Norm") or None
        got = npu.npu_scatter_pa_kv_cache_functional(
            *call["rows"], *(c.clone() for c in call["caches"]), call["slots"], cache_mode=mode
        )
        assert all(same(a, b) for a, b in zip(got, want, strict=True))
        assert (
            npu.npu_scatter_pa_kv_cache(*call["rows"], *call["caches"], call["slots"], cache_mode=mode)
            is None
        )
        assert all(same(a, b) for a, b in zip(call["caches"], want, strict=True))

    for_all(calls(scatter_call), examples, check)


def test_functional_scatter_leaves_its_inputs_alone() -> None:
    key, cache = torch.ones(2, 1, 4), torch.zeros(1, 16, 1, 4)
    new, _ = npu.npu_scatter_pa_kv_cache_functional(
        key, key, cache, cache.clone(), torch.tensor([3, 5]), cache_mode="Norm"
    )
    assert (cache == 0).all() and new.sum() == 8


@pytest.mark.parametrize("mode", ["Norm", "PA_NZ"])
def test_scatter_skips_slots_of_minus_one(mode: str) -> None:
    key, cache = torch.arange(1.0, 33.0).view(4, 1, 8), torch.zeros(1, 16, 1, 8)
    stores = [cache.view(1, 1, 16, 8) if mode == "PA_NZ" else cache for _ in "kv"]
    npu.npu_scatter_pa_kv_cache(
        key, key, stores[0], stores[1].clone(), torch.tensor([-1, 9, -1, 15]), cache_mode=mode
    )
    want = torch.zeros(16, 8)
    want[9], want[15] = key[1, 0], key[3, 0]
    assert torch.equal(cache.view(16, 8), want)


@pytest.mark.parametrize("slots", [[0, 0], [0, 16], [-2, 3], [0]])
def test_refused_scatter_writes_nothing(slots: list[int]) -> None:
    key = torch.ones(2, 1, 4)
    key_cache, value_cache = torch.zeros(1, 16, 1, 4), torch.zeros(1, 16, 1, 4)
    with pytest.raises(ValueError, match="slot_mapping"):
        npu.npu_scatter_pa_kv_cache(key, key, key_cache, value_cache, torch.tensor(slots), cache_mode="Norm")
    assert (key_cache == 0).all() and (value_cache == 0).all()


def test_refused_value_leaves_the_key_cache_alone() -> None:
    key, value = torch.ones(2, 1, 4), torch.ones(2, 1, 5)
    key_cache, value_cache = torch.zeros(1, 16, 1, 4), torch.zeros(1, 16, 1, 4)
    with pytest.raises(ValueError):
        npu.npu_scatter_pa_kv_cache(
            key, value, key_cache, value_cache, torch.tensor([0, 1]), cache_mode="Norm"
        )
    assert (key_cache == 0).all()


def gather_call(draw: Draw) -> dict[str, Any]:
    dtype = draw.one_of(*STORED)
    batch, block_size, heads = draw.size(0, 3), draw.one_of(16, 17), draw.size(1, 3)
    dims = [draw.one_of(5, 8, 17) for _ in range(2)]
    lengths = [draw.size(0, 40) for _ in range(batch)]
    offsets = [draw.one_of(0, block_size, 2 * block_size + 3) for _ in range(batch)]
    columns, blocks = 6, draw.size(6, 9)
    table = torch.zeros(batch, columns, dtype=torch.int32)
    for row in table:
        row[:] = draw.distinct(columns, blocks)
    return {
        "caches": [numbers(draw, dtype, blocks, block_size, heads, dim) for dim in dims],
        "table": table,
        "lengths": lengths,
        "offsets": offsets if draw.maybe() else None,
        "cumulative": draw.maybe(),
    }


@EXAMPLES
def test_gather_reads_the_tables_blocks(examples: int) -> None:
    def check(call: dict[str, Any]) -> None:
        lengths, offsets = call["lengths"], call["offsets"]
        want: list[list[torch.Tensor]] = [[], []]
        block_size = call["caches"][0].shape[1]
        for b, length in enumerate(lengths):
            skipped = 0 if offsets is None else offsets[b] // block_size
            for token in range(length):
                block = int(call["table"][b, skipped + token // block_size])
                for side, cache in zip(want, call["caches"], strict=True):
                    side.append(
                        caches.at(cache, block * block_size + token % block_size, cache.shape[2], False)
                    )
        outs = [
            torch.full((sum(lengths), *cache.shape[2:]), 7, dtype=cache.dtype) for cache in call["caches"]
        ]
        counts = torch.tensor([0, *lengths]).cumsum(0) if call["cumulative"] else torch.tensor(lengths)
        options = {
            "seq_offset": None if offsets is None else torch.tensor(offsets, dtype=torch.int32),
            "is_seq_lens_cumsum": call["cumulative"],
        }
        args = (*call["caches"], call["table"], counts.to(torch.int32))
        functional = npu.npu_gather_pa_kv_cache_functional(*args, *outs, **options)
        assert all((out == 7).all() for out in outs), "the functional form wrote to its inputs"
        npu.npu_gather_pa_kv_cache(*args, *outs, **options)
        for out, other, tokens in zip(outs, functional, want, strict=True):
            expected = torch.stack(tokens) if tokens else out[:0]
            assert torch.equal(out, expected) and torch.equal(other, expected)

    for_all(calls(gather_call), examples, check)


def test_refused_gather_writes_nothing() -> None:
    cache = torch.zeros(2, 16, 1, 4)
    out = torch.full((20, 1, 4), 7.0)
    for table in (torch.tensor([[0, 9]]), torch.tensor([[0, -1]]), torch.tensor([[1]])):
        with pytest.raises(ValueError):
            npu.npu_gather_pa_kv_cache(
                cache, cache, table.to(torch.int32), torch.tensor([20], dtype=torch.int32), out, out.clone()
            )
        assert (out == 7).all()


def nd_call(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = [draw.size(1, 5) for _ in range(draw.size(1, 4))]
    depth = draw.size(1, len(shape))
    places = 1
    for size in shape[:depth]:
        places *= size
    count = draw.size(0, places)
    flat = draw.distinct(count, places)
    index = []
    for size in reversed(shape[:depth]):
        index.append(flat % size)
        flat = flat // size
    indices = torch.stack(index[::-1], -1).to(draw.one_of(torch.int32, torch.int64))
    if draw.maybe() and count % 2 == 0:
        indices = indices.view(2, count // 2, depth)
    target = draw.normal(*shape)
    return target, indices, draw.normal(*indices.shape[:-1], *shape[depth:])


@EXAMPLES
def test_scatter_nd_update_assigns_by_index(examples: int) -> None:
    def check(call: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        target, indices, updates = call
        want = target.clone()
        depth = indices.shape[-1]
        for index, update in zip(
            indices.reshape(-1, depth).tolist(),
            updates.reshape(-1, *target.shape[depth:]),
            strict=True,
        ):
            want[tuple(index)] = update
        before = target.clone()
        assert torch.equal(npu.npu_scatter_nd_update(target, indices, updates), want)
        assert torch.equal(target, before)
        assert npu.npu_scatter_nd_update_(target, indices, updates) is target
        assert torch.equal(target, want)

    for_all(calls(nd_call), examples, check)


def test_refused_scatter_nd_writes_nothing() -> None:
    target = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="indices"):
        npu.npu_scatter_nd_update_(target, torch.tensor([[0], [3]]), torch.ones(2, 2))
    assert (target == 0).all()
