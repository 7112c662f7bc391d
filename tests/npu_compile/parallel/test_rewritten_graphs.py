"""Rewritten graphs on real ranks: collectives over gloo inside the graph."""

from __future__ import annotations

import pytest
import torch

from npu_compile.parallel.group import named, resolve
from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.layout.zigzag import Zigzag
from npu_compile.parallel.metadata import prefill_metadata
from npu_compile.passes.context_parallel.config import ContextParallel, StepInputs, with_step
from npu_compile.passes.context_parallel.rewrite import rewrite
from tests.passes.context_parallel.lowered import causal_program, decode_program, traced

from .oracle import causal_attention, full_attention
from .ranks import results, run_ranks
from .test_decode import sequences_of, shard


def _prefill(rank, ranks):
    """Two steps of different lengths through one compiled graph; the largest error of each."""
    steps = StepInputs()
    config = ContextParallel("prefill", named(resolve(None)), steps=steps)
    mask = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    function, errors = None, []
    for lengths in ((17, 9, 3 * ranks), (2 * ranks, 54)):
        generator = torch.Generator().manual_seed(len(lengths))
        q = [torch.randn(n, 4, 16, generator=generator) for n in lengths]
        k, v = (sequences_of(lengths, 2, 16, generator) for _ in range(2))
        index = Zigzag(lengths, ranks).token_index(rank)
        local = [torch.cat(x)[index].transpose(0, 1)[None] for x in (q, k, v)]
        steps.load(prefill_metadata(lengths, rank, Interleave(ranks)))
        if function is None:
            module = traced(causal_program(), *local, mask, dynamic=True)
            rewrite(module, config)
            function = with_step(module.forward, steps)
        out = function(*local, mask)[0].transpose(0, 1)
        expected = torch.cat([causal_attention(*x, 0.25) for x in zip(q, k, v, strict=True)]) * 2
        errors.append((out - expected[index]).abs().max().item())
    return errors


@pytest.mark.parametrize("ranks", [2, 4])
def test_prefill(ranks):
    for errors in results(run_ranks(ranks, _prefill, ranks)):
        assert max(errors) <= 1e-5


def _decode(rank, ranks, sharded):
    lengths, heads = [21, 1, 6], 8
    generator = torch.Generator().manual_seed(ranks)
    q = torch.randn(3, heads, 16, generator=generator)
    k, v = (sequences_of(lengths, 2, 16, generator) for _ in range(2))
    (key, local), (value, _) = (shard(x, rank, ranks, 2, 12) for x in (k, v))
    own = slice(rank * heads // ranks, (rank + 1) * heads // ranks) if sharded else slice(None)
    inputs = q[:, own].unsqueeze(2), key, value, local
    module = traced(decode_program(heads=inputs[0].shape[1]), *inputs)
    rewrite(module, ContextParallel("decode", named(resolve(None)), heads_sharded=sharded))
    out = module(*inputs).squeeze(2)
    expected = torch.stack([full_attention(*x, 0.25) for x in zip(q, k, v, strict=True)]) * 2
    return (out - expected[:, own]).abs().max().item()


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_decode(ranks, sharded):
    assert max(results(run_ranks(ranks, _decode, ranks, sharded))) <= 1e-5
