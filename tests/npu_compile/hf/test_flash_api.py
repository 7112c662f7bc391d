"""FlashAttention's calls against loops in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import npu_compile.hf.flash_api
import npu_compile.hf.packed
from npu_compile.hf.flash_api import flash_attn_varlen_func, flash_attn_with_kvcache
from npu_compile.kernels.graph_ops import ensure_graph_ops
from tests.npu_compile.hf.oracle import attend_request, attend_row
from tests.npu_compile.hf.test_attention import DIM, HEADS, KV_HEADS, cache, close, paged, tensors

ensure_graph_ops()

Q_LENS, KV_LENS = [4, 1, 17], [7, 1, 17]
CU_Q, CU_K = torch.tensor([0, 4, 5, 22]), torch.tensor([0, 7, 8, 25])


@pytest.fixture(params=[True, False], ids=["packed", "padded"])
def packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for module in (npu_compile.hf.packed, npu_compile.hf.flash_api):
        monkeypatch.setattr(module, "packs", lambda *_, **__: request.param)
    return bool(request.param)


def inputs() -> Any:
    query = tensors(0, sum(Q_LENS), HEADS, DIM)
    return query, tensors(1, sum(KV_LENS), KV_HEADS, DIM), tensors(2, sum(KV_LENS), KV_HEADS, 12)


def split(query: Any, key: Any, value: Any) -> Any:
    return zip(query.split(Q_LENS), key.split(KV_LENS), value.split(KV_LENS), strict=True)


@pytest.mark.parametrize(
    ("window", "keys"), [((-1, -1), None), ((-1, 0), None), ((0, 0), 1), ((4, 0), 5), ((4, 4), 5)]
)
def test_causal(packed: bool, window: tuple[int, int], keys: int | None) -> None:
    got = flash_attn_varlen_func(*inputs(), CU_Q, CU_K, causal=True, window_size=window)
    close(got, [attend_request(q, k, v, DIM**-0.5, None, keys) for q, k, v in split(*inputs())])


def test_both_ways(packed: bool) -> None:
    got = flash_attn_varlen_func(*inputs(), CU_Q, CU_K, softmax_scale=0.3)
    wanted = []
    for q, k, v in split(*inputs()):
        rows = [
            torch.stack([attend_row(row[h], k[:, h // 3], v[:, h // 3], 0.3) for h in range(HEADS)])
            for row in q
        ]
        wanted.append(torch.stack(rows))
    close(got, wanted)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("q_len", [1, 3])
def test_paged(packed: bool, new: bool, q_len: int) -> None:
    """With new keys the cache holds what came before them, and everything afterwards."""
    lengths = [5, 17, 54]
    table, keys, values = paged(lengths)
    before = [length - q_len for length in lengths]
    query = tensors(0, 3, q_len, HEADS, DIM)
    if new:
        caches = [cache(table, [r[:n] for r, n in zip(rows, before, strict=True)]) for rows in (keys, values)]
        added = [torch.stack([r[n:] for r, n in zip(rows, before, strict=True)]) for rows in (keys, values)]
        got = flash_attn_with_kvcache(
            query, *caches, *added, cache_seqlens=torch.tensor(before), page_table=table, causal=True
        )
        for found, rows in zip(caches, (keys, values), strict=True):
            torch.testing.assert_close(found, cache(table, rows), equal_nan=True, rtol=0, atol=0)
    else:
        caches = [cache(table, keys), cache(table, values)]
        got = flash_attn_with_kvcache(
            query, *caches, cache_seqlens=torch.tensor(lengths), page_table=table, causal=q_len > 1
        )
    wanted = [attend_request(query[i], keys[i], values[i], DIM**-0.5) for i in range(3)]
    close(got.flatten(0, 1), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"softcap": 30.0}, "softcap=30.0"),
        ({"dropout_p": 0.1}, "dropout_p=0.1"),
        ({"alibi_slopes": torch.ones(2)}, "alibi_slopes=tensor"),
        ({"window_size": (4, 0)}, r"window_size=\(4, 0\) with causal=False"),
        ({"cu_seqlens_q": CU_Q[1:]}, "cu_seqlens_q: .*begin with 0"),
    ],
)
def test_what_fia_has_not(change: dict[str, Any], message: str) -> None:
    arguments = {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, **change}
    with pytest.raises(ValueError, match=message):
        flash_attn_varlen_func(*inputs(), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window_size": (4, 0)}, "window_size"),
        ({"page_table": None}, "page_table, cache_seqlens"),
        ({"causal": False}, "causal=False: with 3 query tokens"),
        ({"rotary_cos": 1.0}, "rotary_cos"),
    ],
)
def test_what_paged_calls_have_not(change: dict[str, Any], message: str) -> None:
    table, keys, values = paged([5])
    arguments = {"cache_seqlens": torch.tensor([5]), "page_table": table, "causal": True, **change}
    with pytest.raises(ValueError, match=message):
        flash_attn_with_kvcache(
            tensors(0, 1, 3, HEADS, DIM), cache(table, keys), cache(table, values), **arguments
        )
