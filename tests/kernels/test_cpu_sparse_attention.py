"""npu_sparse_flash_attention and its quantised form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close
from tests.kernels.oracle.definition import attention
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all
from tests.kernels.oracle.sparse_calls import Requests

ensure_npu_ops()
npu = torch.ops.npu


@dataclass
class SparseCall:
    requests: Requests
    query: list[torch.Tensor]
    """(N, Lq, L + R)"""
    key: list[torch.Tensor]
    """(1, Lk, L + R), real numbers"""
    indices: list[torch.Tensor]
    """(1, Lq, count)"""
    block: int
    mode: int
    latent: int
    rope: int
    dtype: torch.dtype
    sinks: torch.Tensor | None
    statistics: bool


def sparse_call(draw: Draw) -> SparseCall:
    requests = Requests.draw(draw)
    heads = draw.one_of(1, 2, 4)
    latent, rope = draw.one_of((32, 16), (64, 16), (512, 64))
    dtype = draw.one_of(torch.float32, torch.float32, torch.bfloat16, torch.float16)
    block = draw.one_of(1, 1, 2, 8)
    count = draw.one_of(1, 5, 12)
    indices = []
    for q_len, kv_len in zip(requests.q_lens, requests.kv_lens, strict=True):
        rows = torch.full((1, q_len, count), -1, dtype=torch.int32)
        blocks = -(-kv_len // block)
        for i in range(q_len):
            chosen = draw.distinct(draw.size(0, min(count, blocks)), max(blocks, 1))
            rows[0, i, : chosen.numel()] = chosen
        indices.append(rows)
    statistics = requests.layout_key != "PA_BSND" and draw.maybe()
    return SparseCall(
        requests,
        [draw.normal(heads, length, latent + rope, dtype=dtype) for length in requests.q_lens],
        [draw.normal(1, length, latent + rope, dtype=dtype) for length in requests.kv_lens],
        indices,
        block,
        draw.one_of(0, 3),
        latent,
        rope,
        dtype,
        draw.normal(heads) if not statistics and draw.maybe() else None,
        statistics,
    )


def keep_of(indices: torch.Tensor, block: int, mode: int, kv_len: int) -> torch.Tensor:
    """bool (Lq, Lk): token j of row i is chosen, and not in the future."""
    q_len = indices.shape[1]
    keep = torch.zeros(q_len, kv_len, dtype=torch.bool)
    for i in range(q_len):
        for index in indices[0, i].tolist():
            for token in range(index * block, (index + 1) * block):
                if index >= 0 and token < kv_len and (mode == 0 or token <= kv_len - q_len + i):
                    keep[i, token] = True
    return keep


def poisoned(key: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """NaN in the tokens that no row chose."""
    return key.masked_fill(~keep.any(0)[None, :, None], float("nan"))


def check_rows(call: SparseCall, out: torch.Tensor, scale: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    expected = []
    for q, k, indices, got in zip(call.query, call.key, call.indices, call.requests.rows(out), strict=True):
        keep = keep_of(indices, call.block, call.mode, k.shape[1])
        v = k[..., : call.latent]
        want, lse = attention(q, k, v, scale, keep, sink=call.sinks)
        hidden = (q @ k.mT).mul(scale).masked_fill(~keep, float("-inf"))
        if call.sinks is not None:
            sink = call.sinks.to(q.dtype)[:, None, None].expand(*hidden.shape[:2], 1)
            weights = torch.cat([hidden, sink], -1).softmax(-1)[..., :-1]
        else:
            weights = hidden.softmax(-1).nan_to_num(0.0)
        assert_close(got.transpose(0, 1), want, weights.to(q.dtype) @ v)
        expected.append((want, lse))
    if call.requests.layout_query == "BSND":
        for b, length in enumerate(call.requests.q_lens):
            assert (out[b, length:] == 0).all()
    return expected


@EXAMPLES
def test_attention_over_the_chosen_keys(examples: int) -> None:
    def check(call: SparseCall) -> None:
        requests, latent = call.requests, call.latent
        keeps = [
            keep_of(i, call.block, call.mode, k.shape[1]) for i, k in zip(call.indices, call.key, strict=True)
        ]
        keys = [poisoned(k, keep) for k, keep in zip(call.key, keeps, strict=True)]
        query, key = requests.queries(call.query), requests.keys(keys)
        latent_key = key[..., :latent].contiguous()
        out, maximum, total = npu.npu_sparse_flash_attention(
            query[..., :latent].contiguous(), latent_key, latent_key, requests.indices(call.indices), 0.17,
            query_rope=query[..., latent:].contiguous(), key_rope=key[..., latent:].contiguous(),
            sparse_block_size=call.block, sparse_mode=call.mode, attention_mode=2, sinks=call.sinks,
            return_softmax_lse=call.statistics, **requests.options("kv"),
        )  # fmt: skip
        assert out.dtype == call.dtype
        expected = check_rows(call, out, 0.17)
        if not call.statistics:
            assert maximum.numel() == 0 and total.numel() == 0
            return
        batch_first = query.dim() == 4
        lead = query.shape[:-1]
        shape = (lead[0], 1, *lead[1:]) if batch_first else (1, *lead)
        assert maximum.shape == total.shape == shape and maximum.dtype == total.dtype == torch.float32
        tolerance = 2e-5 if call.dtype == torch.float32 else 2e-2
        rows_first = [t[:, 0] if batch_first else t[0] for t in (maximum, total)]
        for q, k, keep, (_, lse), top, mass in zip(
            call.query, call.key, keeps, expected, *(requests.rows(t) for t in rows_first), strict=True
        ):
            scores = (q.double() @ k.double().mT * 0.17).masked_fill(~keep, float("-inf"))
            if not keep.numel():
                continue
            seen = keep.any(-1)
            want = scores.amax(-1).t()[seen]
            assert (top[seen] - want).abs().max() <= tolerance if seen.any() else True
            got_lse = top[seen] + mass[seen].log()
            assert (got_lse - lse.t()[seen]).abs().max() <= tolerance if seen.any() else True
            assert torch.isneginf(top[~seen]).all() and (mass[~seen] == 0).all()

    for_all(calls(sparse_call), examples, check)


def quantised_call(draw: Draw) -> tuple[SparseCall, list[torch.Tensor], int]:
    """Keys in rows of int8 latent part, rope part and a float32 scale per tile."""
    call = sparse_call(draw)
    tile = draw.one_of(16, 32)
    packed, real = [], []
    for key in call.key:
        tokens = key.shape[1]
        stored = draw.integers(1, tokens, call.latent, low=-128, high=128, dtype=torch.int8)
        scales = draw.uniform(1, tokens, call.latent // tile, low=0.01, high=0.03)
        rope = key[..., call.latent :].contiguous()
        rows = [stored, rope.view(torch.int8), scales.contiguous().view(torch.int8)]
        packed.append(torch.cat([part.reshape(1, tokens, part.shape[-1]) for part in rows], -1))
        numbers = stored.double() * scales.double().repeat_interleave(tile, -1)
        real.append(torch.cat([numbers, rope.double()], -1))
    call.key, call.sinks = real, None
    return call, packed, tile


@EXAMPLES
def test_packed_keys_are_dequantised_by_tile(examples: int) -> None:
    def check(drawn: tuple[SparseCall, list[torch.Tensor], int]) -> None:
        call, packed, tile = drawn
        if call.dtype == torch.float32:
            call.dtype = torch.bfloat16
        requests = call.requests
        key = requests.keys(packed)
        out = npu.npu_kv_quant_sparse_flash_attention(
            requests.queries(call.query), key, key, requests.indices(call.indices), 0.17, 2, 2,
            sparse_block_size=call.block, sparse_mode=call.mode, attention_mode=2, tile_size=tile,
            rope_head_dim=call.rope, **requests.options("kv"),
        )  # fmt: skip
        plain = [k.to(call.query[0].dtype) for k in call.key]
        for q, k, low, indices, got in zip(
            call.query, call.key, plain, call.indices, requests.rows(out), strict=True
        ):
            keep = keep_of(indices, call.block, call.mode, k.shape[1])
            want, _ = attention(q, k, k[..., : call.latent], 0.17, keep)
            scores = (q @ low.mT).mul(0.17).masked_fill(~keep, float("-inf"))
            weights = scores.softmax(-1).nan_to_num(0.0)
            assert_close(got.transpose(0, 1), want, weights @ low[..., : call.latent])

    def half(draw: Draw) -> tuple[SparseCall, list[torch.Tensor], int]:
        while True:
            drawn = quantised_call(draw)
            if drawn[0].dtype != torch.float32:
                return drawn

    for_all(calls(half), examples, check)


def test_many_rows_are_computed_in_chunks() -> None:
    torch.manual_seed(1)
    query, rope = torch.randn(1, 700, 1, 32), torch.randn(1, 700, 1, 16)
    key, key_rope = torch.randn(1, 700, 1, 32), torch.randn(1, 700, 1, 16)
    indices = torch.stack([torch.randperm(700)[:200] for _ in range(700)]).to(torch.int32)[None, :, None]
    options: dict[str, Any] = {"query_rope": rope, "key_rope": key_rope, "attention_mode": 2}
    out, _, _ = npu.npu_sparse_flash_attention(query, key, key, indices, 0.2, **options)
    keep = torch.zeros(700, 700, dtype=torch.bool).scatter_(1, indices[0, :, 0].long(), True).tril()
    q, k = (torch.cat(pair, -1)[0].transpose(0, 1) for pair in ((query, rope), (key, key_rope)))
    want, _ = attention(q, k, key[0].transpose(0, 1), 0.2, keep)
    assert_close(out[0].transpose(0, 1), want)


def test_a_value_of_its_own_is_refused() -> None:
    query, rope = torch.randn(1, 1, 1, 32), torch.randn(1, 1, 1, 16)
    indices = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="value"):
        npu.npu_sparse_flash_attention(
            query, query, query + 1, indices, 1.0, query_rope=rope, key_rope=rope, attention_mode=2
        )
