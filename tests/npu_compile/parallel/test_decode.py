"""Decode over simulated ranks against attention over the whole caches."""

from __future__ import annotations

import random

import pytest
import torch

from npu_compile.errors import AscendFiaError
from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.metadata import decode_metadata
from npu_compile.parallel.simulator import simulate
from npu_compile.passes.context_parallel.collectives import AllGather, AllToAll
from npu_compile.passes.context_parallel.decode import decode_attention
from npu_compile.passes.context_parallel.fia_call import FiaCall

from .oracle import full_attention

FIA = torch.ops.ascend_fia.npu_fused_infer_attention_score.default
FIA_V2 = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2.default


def shard(sequences, rank, ranks, interleave, capacity):
    """(B, N, capacity, D): the rows of ``rank``, by dealing positions out; NaN where there is none."""
    heads, dim = sequences[0].shape[1:]
    cache = torch.full((len(sequences), capacity, heads, dim), float("nan"), dtype=sequences[0].dtype)
    counts = []
    for row, sequence in zip(cache, sequences, strict=True):
        mine = [x for p, x in enumerate(sequence) if p // interleave % ranks == rank]
        counts.append(len(mine))
        if mine:
            row[: len(mine)] = torch.stack(mine)
    return cache.transpose(1, 2), torch.tensor(counts)


def sequences_of(lengths, heads, dim, generator):
    return [torch.randn(n, heads, dim, generator=generator) for n in lengths]


def expected_of(q, k, v, scale):
    return torch.stack([full_attention(*x, scale) for x in zip(q, k, v, strict=True)])


def gqa_call(q, key, value, lengths, scale, layout="BNSD"):
    return FiaCall(
        FIA,
        q,
        key,
        value,
        {
            "num_heads": q.shape[layout.index("N")],
            "num_key_value_heads": key.shape[1],
            "scale": scale,
            "input_layout": layout,
            "actual_seq_lengths_kv": lengths,
        },
    )


@pytest.mark.parametrize("heads", [(4, 2), (6, 3), (3, 1)])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_equals_attention_over_the_whole_cache(ranks, heads):
    rng, generator = random.Random(ranks), torch.Generator().manual_seed(ranks)
    for _ in range(15):
        lengths = [rng.randint(1, 21) for _ in range(rng.randint(1, 4))]
        interleave = rng.choice((1, 2, 4))
        q = torch.randn(len(lengths), heads[0], 16, generator=generator)
        k, v = (sequences_of(lengths, heads[1], 16, generator) for _ in range(2))
        algorithms = []
        for rank in range(ranks):
            (key, local), (value, _) = (shard(x, rank, ranks, interleave, 24) for x in (k, v))
            call = gqa_call(q.unsqueeze(2), key, value, local, 0.25)
            algorithms.append(decode_attention(call, ranks))
        expected = expected_of(q, k, v, 0.25)
        for out in simulate(algorithms):
            assert out.dtype == q.dtype
            assert (out.squeeze(2) - expected).abs().max() <= 1e-5, (lengths, interleave)


def test_heads_sharded_over_the_same_ranks():
    """Each rank has the queries of two heads and gets their output; K/V of the one head are shared."""
    generator, ranks, lengths = torch.Generator().manual_seed(0), 2, [5, 1]
    q = torch.randn(2, 4, 16, generator=generator)
    k, v = (sequences_of(lengths, 1, 16, generator) for _ in range(2))
    algorithms = []
    for rank in range(ranks):
        (key, local), (value, _) = (shard(x, rank, ranks, 1, 4) for x in (k, v))
        assert local.tolist() == [[3, 1], [2, 0]][rank]
        own = q[:, rank * 2 : rank * 2 + 2]
        algorithms.append(
            decode_attention(gqa_call(own.unsqueeze(2), key, value, local, 0.25), ranks, heads_sharded=True)
        )
    merged = torch.cat(simulate(algorithms), 1)
    assert (merged.squeeze(2) - expected_of(q, k, v, 0.25)).abs().max() <= 1e-5


def mla_case(ranks, lengths, heads, generator, latent=32, rope=8):
    """Queries, latents, ropes; and per rank the call in BNSD_NBSD, as absorbed MLA is."""
    q, q_rope = (torch.randn(len(lengths), heads, d, generator=generator) for d in (latent, rope))
    c, k_rope = (sequences_of(lengths, 1, d, generator) for d in (latent, rope))
    calls = []
    for rank in range(ranks):
        (cache, local), (ropes, _) = (shard(x, rank, ranks, 1, 12) for x in (c, k_rope))
        arguments = {
            "num_query_heads": heads,
            "num_key_value_heads": 1,
            "softmax_scale": 0.2,
            "input_layout": "BNSD_NBSD",
            "query_rope": q_rope.unsqueeze(2),
            "key_rope": ropes,
            "actual_seq_kvlen": local,
        }
        calls.append(FiaCall(FIA_V2, q.unsqueeze(2), cache, cache, arguments))
    whole = [torch.cat(x, -1) for x in zip(c, k_rope, strict=True)]
    return calls, expected_of(torch.cat([q, q_rope], -1), whole, c, 0.2)


def test_mla_merges_latents():
    calls, expected = mla_case(2, [3, 11], 4, torch.Generator().manual_seed(4))
    for out in simulate([decode_attention(call, 2) for call in calls]):
        assert out.shape == (4, 2, 1, 32)
        assert (out.squeeze(2).transpose(0, 1) - expected).abs().max() <= 1e-5


def test_mla_with_sharded_heads_gathers_query_and_rope_at_once():
    calls, expected = mla_case(2, [3, 11], 4, torch.Generator().manual_seed(4))
    own = []
    for rank, call in enumerate(calls):
        mine = slice(rank * 2, rank * 2 + 2)
        rope = call.arguments["query_rope"][:, mine]
        call = call.with_arguments(query_rope=rope, num_query_heads=2)
        own.append(FiaCall(FIA_V2, call.query[:, mine], call.key, call.value, call.arguments))
    first = decode_attention(own[0], 2, heads_sharded=True)
    (asked,) = next(first)
    assert isinstance(asked, AllGather) and asked.tensor.shape == (2, 2, 40)
    merged = torch.cat(simulate([decode_attention(call, 2, heads_sharded=True) for call in own]))
    assert (merged.squeeze(2).transpose(0, 1) - expected).abs().max() <= 1e-5


def test_parts_travel_as_heads_by_dim_and_lse_by_rows():
    calls, _ = mla_case(2, [3, 11], 4, torch.Generator().manual_seed(4))
    (sent,) = next(decode_attention(calls[0], 2))
    assert isinstance(sent, AllToAll)
    assert sent.tensor.shape == (4, 33, 2) and sent.tensor.dtype == torch.float32


def test_an_empty_sequence_gives_zeros():
    q = torch.randn(1, 2, 1, 8)
    cache = torch.full((1, 2, 4, 8), float("nan"))
    for out in simulate([decode_attention(gqa_call(q, cache, cache, torch.tensor([0]), 1.0), 2)] * 1 + [
        decode_attention(gqa_call(q, cache, cache, torch.tensor([0]), 1.0), 2)
    ]):  # fmt: skip
        assert torch.equal(out, torch.zeros_like(q))


def test_low_precision_is_as_good_as_one_call():
    generator = torch.Generator().manual_seed(9)
    q = torch.randn(2, 4, 64, generator=generator).bfloat16()
    k, v = ([x.bfloat16() for x in sequences_of([97, 54], 2, 64, generator)] for _ in range(2))
    exact = expected_of(q, k, v, 0.125)
    algorithms, plain = [], []
    for rank in range(2):
        (key, local), (value, _) = (shard(x, rank, 2, 1, 49) for x in (k, v))
        algorithms.append(decode_attention(gqa_call(q.unsqueeze(2), key, value, local, 0.125), 2))
    for one, keys, values in zip(q, k, v, strict=True):
        scores = torch.einsum("nd,knd->nk", one, keys.repeat_interleave(2, 1)) * 0.125
        plain.append(torch.einsum("nk,knd->nd", scores.softmax(-1), values.repeat_interleave(2, 1)))
    error = (simulate(algorithms)[0].squeeze(2).double() - exact).abs().max()
    assert error <= 2 * (torch.stack(plain).double() - exact).abs().max()


def test_decode_metadata_counts_the_new_token_where_it_is_kept():
    lengths = torch.tensor([4, 5, 0])
    first, second = (decode_metadata(lengths, rank, Interleave(2), rows=4) for rank in range(2))
    assert first.positions.tolist() == [4, 5, 0]
    assert first.slots.tolist() == [2, 3, 0] and second.slots.tolist() == [3, 2, 3]
    assert first.local_lengths.tolist() == [3, 3, 1] and second.local_lengths.tolist() == [2, 3, 0]


def test_a_full_cache_is_named():
    with pytest.raises(AscendFiaError, match=r"lengths=\[6\].*3 cache rows"):
        decode_metadata(torch.tensor([6]), 1, Interleave(2), rows=4)
