"""A long context is expanded in chunks and merged by log-sum-exp."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.site import SiteOutcome
from tests.passes.graphs import random
from tests.passes.mla.lowering import FIA, calls, lowered, run
from tests.passes.mla.spellings import LATENT, NOPE, ROPE, VALUE, B, N, oracle, slice_writes
from tests.passes.mla.test_masks import masked, step

KEYS = 300


def tensors(queries: int, keys: int = KEYS, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return (
        random(B, N, queries, NOPE + ROPE, dtype=dtype),
        random(B, keys, LATENT, seed=1, dtype=dtype),
        random(B, keys, ROPE, seed=2, dtype=dtype),
        random(N * (NOPE + VALUE), LATENT, seed=3, dtype=dtype) / 4,
    )


def chunked(
    function: Any, *inputs: Any, most: int, target: Target = Target.CPU
) -> tuple[fx.GraphModule, SiteOutcome]:
    module, (outcome,) = lowered(function, *inputs, choice="expand", most=most, target=target)
    return module, outcome


@pytest.mark.parametrize(("most", "parts"), [(2 * KEYS, 1), (2 * KEYS - 1, 2), (1, 3)])
def test_every_key_is_in_one_chunk(most: int, parts: int) -> None:
    """Chunks of 256 and of 128 tokens for each of the two requests."""
    inputs = tensors(5)
    module, outcome = chunked(slice_writes, *inputs, most=most)
    assert len(calls(module, FIA)) == parts and outcome.lowered
    assert ("context expanded" in " ".join(outcome.notes)) == (parts > 1)
    torch.testing.assert_close(run(module, *inputs), oracle(*inputs), rtol=0, atol=1e-5)


def test_no_more_than_a_chunk_is_expanded_at_a_time() -> None:
    module, _ = chunked(slice_writes, *tensors(5), most=1)
    expanded = [n.meta["val"] for n in module.graph.nodes if n.target is torch.ops.aten.linear.default]
    assert [tuple(e.shape[:2]) for e in expanded] == [(B, 128), (B, 128), (B, 44)]


@pytest.mark.parametrize("queries", [1, 5, 17])
@pytest.mark.parametrize("seen", [0, 100, 128, KEYS - 17])
def test_a_chunk_of_a_prompt_behind_a_context(queries: int, seen: int) -> None:
    query, latents, ropes, weight = tensors(queries)
    new = latents[:, seen : seen + queries].clone(), ropes[:, seen : seen + queries].clone()
    cache, cache_rope = latents.clone(), ropes.clone()
    cache[:, seen:], cache_rope[:, seen:] = float("nan"), float("nan")
    inputs = query, cache, cache_rope, weight, *new, torch.tensor(seen)
    module, outcome = chunked(step, *inputs, most=1)
    assert outcome.lowered and len(calls(module, FIA)) == (3 if queries == 1 else 4)
    assert not any("explicit" in str(n.kwargs.get("sparse_mode")) for n in calls(module, FIA))
    keep = torch.arange(KEYS)[None, :] <= torch.arange(queries)[:, None] + seen
    wanted = oracle(query, latents, ropes, weight, keep.expand(B, -1, -1))
    torch.testing.assert_close(run(module, *inputs), wanted, rtol=0, atol=1e-5)


def test_an_explicit_mask_is_cut_and_its_empty_rows_have_no_weight() -> None:
    inputs = tensors(5)
    keep = random(B, 1, 5, KEYS, seed=9) > 0
    keep[0, 0, 1, :128], keep[1, 0, 2, 128:] = False, False
    module, _ = chunked(masked, *inputs, keep, most=1)
    wanted = oracle(*inputs, keep[:, 0])
    torch.testing.assert_close(run(module, *inputs, keep), wanted, rtol=0, atol=1e-5)


def test_more_parts_than_one_update_takes() -> None:
    inputs = tensors(3, keys=128 * 20)
    module, outcome = chunked(slice_writes, *inputs, most=1)
    updates = [n for n in module.graph.nodes if "npu_attention_update" in n.name]
    assert [len(n.args[0]) for n in updates] == [16, 4, 2] and "in 20 parts" in " ".join(outcome.notes)
    torch.testing.assert_close(run(module, *inputs), oracle(*inputs), rtol=0, atol=1e-5)


def test_a_bias_is_not_cut() -> None:
    inputs = tensors(5)
    module, outcome = chunked(masked, *inputs, random(B, N, 5, KEYS, dtype=torch.float64), most=1)
    assert outcome.lowered and len(calls(module, FIA)) == 1
    assert any("not cut into chunks" in note for note in outcome.notes)


def test_a_device_gets_parts_it_takes() -> None:
    ropes = torch.empty(B, KEYS, 64, dtype=torch.bfloat16, device="meta")
    latents = torch.empty(B, KEYS, 512, dtype=torch.bfloat16, device="meta")
    query = torch.empty(B, N, 40, 192, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(N * 256, 512, dtype=torch.bfloat16, device="meta")
    from tests.passes.mla.test_devices import real

    module, outcome = chunked(real, query, latents, ropes, weight, most=1, target=Target.ASCEND910B)
    assert outcome.lowered and len(calls(module, FIA)) == 3
    assert all(call.args[1].meta["val"].shape[-1] == 192 for call in calls(module, FIA))
