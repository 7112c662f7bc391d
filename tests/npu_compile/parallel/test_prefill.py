"""Prefill over simulated ranks against attention of the whole sequences."""

from __future__ import annotations

import random

import pytest
import torch

from npu_compile.parallel.layout.interleave import Interleave
from npu_compile.parallel.layout.zigzag import Zigzag
from npu_compile.parallel.metadata import prefill_metadata
from npu_compile.parallel.simulator import simulate
from npu_compile.passes.context_parallel.fia_call import FiaCall
from npu_compile.passes.context_parallel.metadata import Half, PrefillMetadata, PrefillStep
from npu_compile.passes.context_parallel.prefill import prefill_attention

from .oracle import causal_attention

FIA = torch.ops.ascend_fia.npu_fused_infer_attention_score.default
FIA_V2 = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2.default
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def call_for(q, k, v, scale, sparse_mode=3, pre_tokens=2147483647):
    """A BNSD call of packed (T, N, D) tensors."""
    return FiaCall(
        FIA,
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        {
            "num_heads": q.shape[1],
            "num_key_value_heads": k.shape[1],
            "scale": scale,
            "input_layout": "BNSD",
            "atten_mask": MASK,
            "sparse_mode": sparse_mode,
            "pre_tokens": pre_tokens,
            "next_tokens": 0,
        },
    )


def held_rows(sequences, prefix, rank, ranks, interleave):
    """The prefix rows that ``rank`` caches, by dealing positions out one at a time."""
    rows = [
        sequence[p] for sequence, n in zip(sequences, prefix, strict=True) for p in range(n)
        if p // interleave % ranks == rank
    ]  # fmt: skip
    return torch.stack(rows) if rows else sequences[0][:0]


def run(lengths, ranks, prefix=None, interleave=1, heads=(4, 2), dim=8, window=None, seed=0, block_size=0):
    """Outputs per sequence from simulated ranks, and those of the definition."""
    prefix = prefix or [0] * len(lengths)
    generator = torch.Generator().manual_seed(seed)
    make = lambda n, h: torch.randn(n, h, dim, generator=generator, dtype=torch.float64)  # noqa: E731
    q = [make(n, heads[0]) for n in lengths]
    k = [make(p + n, heads[1]) for p, n in zip(prefix, lengths, strict=True)]
    v = [make(p + n, heads[1]) for p, n in zip(prefix, lengths, strict=True)]
    layout, scale = Zigzag(tuple(lengths), ranks), dim**-0.5
    new = lambda parts: torch.cat([x[p:] for x, p in zip(parts, prefix, strict=True)])  # noqa: E731
    algorithms = []
    for rank in range(ranks):
        index = layout.token_index(rank)
        rows = [torch.cat([held_rows(x, prefix, rank, ranks, interleave), new(x)[index]]) for x in (k, v)]
        metadata = prefill_metadata(lengths, rank, Interleave(ranks, interleave), prefix)
        step = metadata.step(block_size=block_size)
        mode = {"sparse_mode": 4, "pre_tokens": window - 1} if window else {"sparse_mode": 3}
        call = call_for(torch.cat(q)[index], *rows, scale, **mode)
        algorithms.append(prefill_attention(call, step))
    out = torch.empty(sum(lengths), heads[0], dim, dtype=torch.float64)
    for rank, result in enumerate(simulate(algorithms)):
        out[layout.token_index(rank)] = result[0].transpose(0, 1)
    expected = torch.cat([causal_attention(*x, scale, window) for x in zip(q, k, v, strict=True)])
    return out, expected


def test_equals_attention_of_whole_sequences():
    rng = random.Random(1)
    for seed in range(500):
        ranks = rng.choice((2, 3, 4))
        lengths = [rng.randint(2 * ranks, 2 * ranks + 20) for _ in range(rng.randint(1, 4))]
        prefix = [rng.choice((0, 1, rng.randint(0, 17))) for _ in lengths]
        out, expected = run(lengths, ranks, prefix, rng.choice((1, 2, 4)), heads=(2, 1), seed=seed)
        assert (out - expected).abs().max() <= 1e-12, (lengths, ranks, prefix)


def test_paged_keys_give_the_same():
    for lengths, ranks, prefix in (([17, 9], 2, [5, 0]), ([54, 6, 8], 3, [0, 17, 2]), ([97], 4, [1])):
        out, expected = run(lengths, ranks, prefix, block_size=16)
        assert (out - expected).abs().max() <= 1e-12


def test_paged_lengths_are_per_request():
    step = prefill_metadata([10, 6], 0, Interleave(2), [3, 0]).step(block_size=4)
    assert step.prev.q_lengths.tolist() == [3, 5] and step.next.q_lengths.tolist() == [2, 3]
    assert step.prev.kv_lengths.tolist() == [6, 2] and step.next.kv_lengths.tolist() == [13, 6]
    assert step.block_table.tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
    assert step.block_table.dtype == torch.int32
    packed = prefill_metadata([10, 6], 0, Interleave(2), [3, 0])
    assert step.prev.kv_rows[:13].tolist() == packed.kv_rows[:13].tolist()
    assert step.prev.kv_rows[16:22].tolist() == packed.kv_rows[13:].tolist()


def test_a_window_is_kept():
    for window in (1, 3, 8):
        out, expected = run([17, 9], 2, [5, 0], window=window)
        assert (out - expected).abs().max() <= 1e-12


def test_attention_sinks_are_kept():
    """Every rank adds its heads' sinks to the softmax of its own queries."""
    lengths, ranks, generator = [10, 7], 2, torch.Generator().manual_seed(2)
    q, k, v = (
        [torch.randn(n, heads, 64, generator=generator).bfloat16() for n in lengths] for heads in (4, 2, 2)
    )
    sinks, layout = torch.randn(4, generator=generator), Zigzag(tuple(lengths), ranks)
    algorithms = []
    for rank in range(ranks):
        rows = [torch.cat(x)[layout.token_index(rank)].transpose(0, 1)[None] for x in (q, k, v)]
        arguments = {"num_query_heads": 4, "num_key_value_heads": 2, "softmax_scale": 0.125}
        arguments |= {"input_layout": "BNSD", "atten_mask": MASK, "sparse_mode": 3, "learnable_sink": sinks}
        step = prefill_metadata(lengths, rank, Interleave(ranks)).step()
        algorithms.append(prefill_attention(FiaCall(FIA_V2, *rows, arguments), step))
    expected = torch.cat([with_sinks(*x, 0.125, sinks) for x in zip(q, k, v, strict=True)])
    for rank, result in enumerate(simulate(algorithms)):
        difference = result[0].transpose(0, 1) - expected[layout.token_index(rank)]
        assert difference.abs().max() <= 2e-2


def with_sinks(q, k, v, scale, sinks):
    """Causal attention in float64, each head's sink one more score that has no value."""
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    rows = []
    for i in range(q.shape[0]):
        scores = torch.einsum("nd,knd->nk", q[i], k[: i + 1]) * scale
        weights = torch.cat([scores, sinks.double()[:, None]], -1).softmax(-1)[:, :-1]
        rows.append(torch.einsum("nk,knd->nd", weights, v[: i + 1]))
    return torch.stack(rows)


def test_the_midpoint_is_not_the_split(monkeypatch):
    """Where blocks differ in length, halving the local queries gives another result by a wide margin."""
    lengths, ranks = [10, 6, 9], 2
    out, expected = run(lengths, ranks)
    assert (out - expected).abs().max() <= 1e-12
    right = PrefillMetadata.step

    def at_the_midpoint(self, **options):
        step = right(self, **options)
        middle = self.tokens // 2
        moved = middle - step.total_q_prev_tokens
        prev, following = step.prev.q_lengths.clone(), step.next.q_lengths + moved * -1
        prev[-1] += moved
        return PrefillStep(
            middle,
            step.rows_per_rank,
            Half(prev, step.prev.kv_lengths, step.prev.kv_rows),
            Half(following, step.next.kv_lengths, step.next.kv_rows),
        )

    monkeypatch.setattr(PrefillMetadata, "step", at_the_midpoint)
    out, expected = run(lengths, ranks)
    assert (out - expected).abs().max() > 1e-2


def test_worked_numbers_of_two_ranks():
    first, second = (prefill_metadata([10, 6], rank, Interleave(2), [3, 0]) for rank in range(2))
    assert first.total_q_prev_tokens == 5 and first.tokens == 8
    assert (first.actual_seq_q_prev, first.actual_seq_q_next) == ([3, 2], [2, 1])
    assert (first.kv_len_prev, first.kv_len_next) == ([6, 2], [13, 6])
    assert (second.actual_seq_q_prev, second.actual_seq_q_next) == ([3, 2], [2, 1])
    assert (second.kv_len_prev, second.kv_len_next) == ([9, 4], [11, 5])
    step = first.step()
    assert step.prev.q_lengths.tolist() == [3, 5] and step.next.q_lengths.tolist() == [2, 3]
    assert step.prev.kv_lengths.tolist() == [6, 8] and step.next.kv_lengths.tolist() == [13, 19]


def test_one_sequence_goes_through_the_same_code():
    metadata = prefill_metadata([17], 1, Interleave(2))
    assert metadata.actual_seq_q_prev == [4] and metadata.total_q_prev_tokens == 4
    assert metadata.step().prev.q_lengths.tolist() == [4]


def test_a_missing_field_fails_when_built():
    with pytest.raises(TypeError, match="tokens_per_rank"):
        PrefillMetadata(1, 2, [1], [1], [1], [2], [2], torch.arange(2))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"total_q_prev_tokens": 4}, "total_q_prev_tokens=4"),
        ({"actual_seq_q_prev": [3]}, "one entry per sequence"),
        ({"kv_len_prev": [6, 1]}, "2 queries with 1 of 6 keys"),
        ({"kv_rows": torch.arange(3)}, r"kv_rows of shape \(3,\)"),
    ],
)
def test_fields_that_do_not_fit_are_named(change, named):
    from dataclasses import replace

    with pytest.raises(ValueError, match=named):
        replace(prefill_metadata([10, 6], 0, Interleave(2), [3, 0]), **change)
