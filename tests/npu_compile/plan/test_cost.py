"""FLOPs and bytes against loops over the scores, and against arithmetic written out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import npu_compile
from npu_compile.planning.attended import attended
from npu_compile.planning.lengths import known_values
from npu_compile.planning.result import Estimate
from tests.npu_compile.plan.tiny import DEEPSEEK_V3, GEMMA3, LLAMA

BATCH, PROMPT, CACHE = 3, 54, 97


def sees(row: int, key: int, queries: int, keys: int, mode: int, before: int, after: int) -> bool:
    if mode == 2:
        return key <= row
    if mode == 3:
        return key <= row + keys - queries
    distance = key - (row + keys - queries)
    return mode != 4 or -before <= distance <= after


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (5, 54), (54, 17), (1, 1)])
@pytest.mark.parametrize(("before", "after"), [(3, 0), (16, 2), (0, 0), (200, 200)])
def test_attended_pairs_are_those_of_the_mask(mode, queries, keys, before, after):
    seen = [
        (row, key)
        for row, key in itertools.product(range(queries), range(keys))
        if sees(row, key, queries, keys, mode, before, after)
    ]
    assert attended(queries, keys, mode, before, after) == (len(seen), len({key for _, key in seen}))


@pytest.fixture(scope="module")
def llama():
    return npu_compile.plan(LLAMA, batch=BATCH, prompt=PROMPT, cache=CACHE, dtype="float16")


def test_prefill_of_a_causal_model(llama):
    (site,) = llama.steps[0].sites
    heads, key_heads, width, half = 4, 2, 16, 2
    pairs = PROMPT * (PROMPT + 1) // 2
    assert site.count == 4
    assert site.program.flops == 2 * BATCH * heads * PROMPT * PROMPT * (width + width)
    assert site.cost.flops == 2 * BATCH * heads * pairs * (width + width)
    assert site.cost.kv_bytes == BATCH * key_heads * PROMPT * (width + width) * half
    assert site.program.mask_bytes == 0
    assert site.cost.mask_bytes == 2048 * 2048
    assert site.cost.query_bytes == 2 * BATCH * heads * PROMPT * width * half
    assert llama.steps[0].cost.flops == 4 * site.cost.flops


def test_decode_reads_what_the_cache_holds(llama):
    (site,) = llama.steps[1].sites
    held, key_heads, width, half = PROMPT + 1, 2, 16, 2
    assert site.program.kv_bytes == BATCH * key_heads * CACHE * 2 * width * half
    assert site.cost.kv_bytes == BATCH * key_heads * held * 2 * width * half
    assert site.cost.flops == 2 * BATCH * 4 * held * 2 * width
    assert site.program.mask_bytes == CACHE  # one row for all requests
    assert site.cost.mask_bytes == 0
    assert (site.site.query_len, site.site.key_len) == ("1", str(CACHE))


def test_times_are_the_longer_of_arithmetic_and_memory(llama):
    machine = llama.machine
    (site,) = llama.steps[1].sites
    moved = site.cost.kv_bytes + site.cost.mask_bytes + site.cost.query_bytes
    assert site.estimate.compute_seconds == pytest.approx(site.cost.flops / machine.flops)
    assert site.estimate.memory_seconds == pytest.approx(moved / machine.bandwidth)
    assert site.estimate.bound == "memory"
    assert llama.steps[1].seconds == pytest.approx(4 * moved / machine.bandwidth)
    assert Estimate(2.0, 1.0).bound == "compute" and Estimate(2.0, 1.0).seconds == 2.0


def test_a_window_bounds_what_is_read():
    plan = npu_compile.plan(GEMMA3, batch=BATCH, prompt=PROMPT, cache=CACHE)
    window, full = plan.steps[0].sites
    pairs = sum(min(row + 1, 16) for row in range(PROMPT))
    assert window.cost.flops == 2 * BATCH * 4 * pairs * 32
    assert full.cost.flops == 2 * BATCH * 4 * (PROMPT * (PROMPT + 1) // 2) * 32
    window, _ = plan.steps[1].sites
    assert window.cost.kv_bytes == BATCH * 2 * 16 * 32 * 2


def test_absorbed_latents_are_read_once_for_all_heads():
    plan = npu_compile.plan(DEEPSEEK_V3, batch=BATCH, prompt=PROMPT, cache=CACHE)
    for site in plan.steps[1].sites:
        assert site.site.op.endswith("_v2")
        assert site.cost.kv_bytes == BATCH * (PROMPT + 1) * (512 + 64) * 2
        assert site.cost.flops == 2 * BATCH * 4 * (PROMPT + 1) * (512 + 64 + 512)
        assert site.program.flops == 2 * BATCH * 4 * CACHE * (128 + 64 + 128)


class Counting(nn.Module):
    def forward(self, count, other):
        before = count + 1
        row = torch.arange(3, device=count.device) + count
        count.add_(5)
        other.add_(count)
        return before, row, count * 2, other + 1, torch.rand(1, device=count.device)


def test_known_values_follow_the_program_order_and_its_writes():
    count, other = torch.tensor(7), torch.zeros(2)
    graph = torch.fx.experimental.proxy_tensor.make_fx(Counting(), pre_dispatch=True, tracing_mode="fake")(
        count, other
    )
    place = graph.graph.find_nodes(op="placeholder")[0]
    known = known_values(graph, {place: torch.tensor(7)})
    before, row, doubled, unknown, random = graph.graph.output_node().args[0]
    assert int(known[before]) == 8
    assert known[row].tolist() == [7, 8, 9]
    assert int(known[doubled]) == 24
    assert unknown not in known and random not in known
