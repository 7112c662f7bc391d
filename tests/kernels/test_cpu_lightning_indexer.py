"""npu_lightning_indexer and its quantised form: which keys are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all
from tests.kernels.oracle.sparse_calls import Requests

ensure_npu_ops()
npu = torch.ops.npu
DIM = 128


@dataclass
class IndexerCall:
    requests: Requests
    query: list[torch.Tensor]
    key: list[torch.Tensor]
    weights: list[torch.Tensor]
    query_scale: list[torch.Tensor]
    key_scale: list[torch.Tensor]
    count: int
    mode: int


def indexer_call(draw: Draw, quantised: bool) -> IndexerCall:
    requests = Requests.draw(draw)
    heads = draw.one_of(1, 4, 8)
    dtype = draw.one_of(torch.float32, torch.float16, torch.bfloat16)

    def values(heads: int, tokens: int) -> torch.Tensor:
        if quantised:
            return draw.integers(heads, tokens, DIM, low=-128, high=128, dtype=torch.int8)
        return draw.normal(heads, tokens, DIM, dtype=dtype)

    scale_dtype = torch.float16 if quantised else dtype
    return IndexerCall(
        requests,
        [values(heads, length) for length in requests.q_lens],
        [values(1, length) for length in requests.kv_lens],
        [draw.normal(heads, length, 1, dtype=scale_dtype) for length in requests.q_lens],
        [draw.uniform(heads, length, 1, low=0.01, high=0.02).half() for length in requests.q_lens],
        [draw.uniform(1, length, 1, low=0.01, high=0.02).half() for length in requests.kv_lens],
        draw.one_of(1, 7, 40, 64),
        draw.one_of(0, 3),
    )


def scores(query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """float64 (Lq, Lk) by the definition: q (N, Lq, D), k (1, Lk, D), weights (N, Lq, 1)."""
    out = torch.zeros(query.shape[1], key.shape[1], dtype=torch.float64)
    for head in range(query.shape[0]):
        products = query[head].double() @ key[0].double().t()
        out += weights[head].double() * products.clamp(min=0)
    return out


def assert_best(rows: torch.Tensor, score: torch.Tensor, count: int, mode: int, tolerance: float) -> None:
    """``rows`` (Lq, 1, count) names the best visible keys of each row, then -1; ties within the tolerance."""
    q_len, kv_len = score.shape
    for i in range(q_len):
        seen = max(0, min(kv_len, kv_len - q_len + i + 1)) if mode == 3 else kv_len
        kept = min(count, seen)
        row = rows[i, 0].tolist()
        assert row[kept:] == [-1] * (count - kept), f"row {i} goes on after its {kept} keys: {row}"
        chosen = row[:kept]
        assert len(set(chosen)) == kept and all(0 <= index < seen for index in chosen)
        if kept:
            best = score[i, :seen].sort(descending=True).values[:kept]
            got = score[i, chosen].sort(descending=True).values
            slack = tolerance * max(1.0, float(best.abs().max()))
            assert (best - got).abs().max() <= slack, f"row {i} misses a better key"


def tensors(call: IndexerCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    requests = call.requests
    return (
        requests.queries(call.query),
        requests.keys(call.key),
        requests.queries(call.weights).squeeze(-1),
    )


def assert_unowned(call: IndexerCall, indices: torch.Tensor) -> None:
    if call.requests.layout_query == "BSND":
        for b, length in enumerate(call.requests.q_lens):
            assert (indices[b, length:] == -1).all()


@EXAMPLES
def test_indexer_chooses_the_best_keys(examples: int) -> None:
    def check(call: IndexerCall) -> None:
        query, key, weights = tensors(call)
        options: dict[str, Any] = call.requests.options("key")
        wants_values = call.requests.layout_key != "PA_BSND" and call.count % 2 == 1
        indices, values = npu.npu_lightning_indexer(
            query, key, weights,
            sparse_count=call.count, sparse_mode=call.mode, return_value=wants_values, **options,
        )  # fmt: skip
        assert indices.dtype == torch.int32 and indices.shape == (*query.shape[:-2], 1, call.count)
        assert_unowned(call, indices)
        rows = call.requests.rows(indices)
        for q, k, w, row in zip(call.query, call.key, call.weights, rows, strict=True):
            assert_best(row, scores(q, k, w), call.count, call.mode, 1e-4)
        if not wants_values:
            assert values.numel() == 0
            return
        for q, k, w, row, value in zip(
            call.query, call.key, call.weights, rows, call.requests.rows(values), strict=True
        ):
            score = scores(q, k, w)
            for i in range(q.shape[1]):
                for index, got in zip(row[i, 0].tolist(), value[i, 0].double().tolist(), strict=True):
                    if index >= 0:
                        want = float(score[i, index])
                        assert abs(got - want) <= 1e-2 * max(1.0, abs(want))

    for_all(calls(lambda draw: indexer_call(draw, quantised=False)), examples, check)


@EXAMPLES
def test_quantised_indexer_chooses_by_real_numbers(examples: int) -> None:
    def check(call: IndexerCall) -> None:
        query, key, weights = tensors(call)
        requests = call.requests
        indices = npu.npu_quant_lightning_indexer(
            query, key, weights,
            requests.queries(call.query_scale).squeeze(-1), requests.keys(call.key_scale).squeeze(-1), 0, 0,
            sparse_count=call.count, sparse_mode=call.mode, **requests.options("key"),
        )  # fmt: skip
        assert_unowned(call, indices)
        sides = zip(call.query, call.key, call.weights, call.query_scale, call.key_scale, strict=True)
        for (q, k, w, q_scale, k_scale), row in zip(sides, requests.rows(indices), strict=True):
            real = scores(q.double() * q_scale.double(), k.double() * k_scale.double(), w)
            assert_best(row, real, call.count, call.mode, 1e-4)

    for_all(calls(lambda draw: indexer_call(draw, quantised=True)), examples, check)


def test_a_long_context_is_scored_in_chunks() -> None:
    torch.manual_seed(0)
    query, key, weights = torch.randn(1, 600, 8, DIM), torch.randn(1, 1500, 1, DIM), torch.rand(1, 600, 8)
    indices, _ = npu.npu_lightning_indexer(query, key, weights, sparse_count=5)
    score = scores(query[0].transpose(0, 1), key[0].transpose(0, 1), weights[0].t().unsqueeze(-1))
    assert_best(indices[0], score, 5, 3, 1e-4)
