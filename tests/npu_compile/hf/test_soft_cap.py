"""Soft-capped scores with "ascend_fia": in padded batches as the eager model has them, elsewhere refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import npu_compile.hf
from npu_compile.hf.attention import FiaAttention
from npu_compile.hf.kv_views import KEYWORD, PackedKV
from tests.models.cases import ids
from tests.models.test_softcap import GEMMA2
from tests.npu_compile.hf.drive import Recorder
from tests.passes.graphs import random

npu_compile.hf.register()

B, N, KV, D, CAP = 2, 4, 2, 16, 0.8
MODULE = SimpleNamespace(is_causal=True, training=False)
IDS = ids(3, 54)


def qkv(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, N, queries, D), random(B, KV, keys, D, seed=1), random(B, KV, keys, D, seed=2)


def attend(queries: int, keys: int, mask: Tensor | None = None, **arguments: Any) -> Tensor:
    return FiaAttention()(MODULE, *qkv(queries, keys), mask, softcap=CAP, **arguments)[0]


def oracle(queries: int, keys: int, keep: Tensor) -> Tensor:
    """(B, Q, N, D) in float64, one row after the other; rows that keep nothing are 0."""
    q, k, v = qkv(queries, keys)
    out = torch.zeros(B, queries, N, D, dtype=torch.float64)
    keep = keep.expand(B, 1, queries, keys)
    for b in range(B):
        for n in range(N):
            for i in range(queries):
                seen = keep[b, 0, i]
                if seen.any():
                    scores = k[b, n // 2, seen].double() @ q[b, n, i].double() / math.sqrt(D)
                    weights = torch.softmax(CAP * torch.tanh(scores / CAP), 0)
                    out[b, i, n] = weights @ v[b, n // 2, seen].double()
    return out


def test_causal() -> None:
    wanted = oracle(17, 17, torch.ones(17, 17).tril().bool())
    torch.testing.assert_close(attend(17, 17).double(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 54), (17, 54)])
def test_masks(queries: int, keys: int) -> None:
    keep = random(B, 1, queries, keys, seed=3) > 0
    keep[0, :, 0] = False
    got = attend(queries, keys, keep)
    torch.testing.assert_close(got.double(), oracle(queries, keys, keep), atol=1e-6, rtol=0)


def test_a_step_sees_all_keys() -> None:
    wanted = oracle(1, 97, torch.ones(1, 97).bool())
    torch.testing.assert_close(attend(1, 97).double(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"s_aux": torch.zeros(N)}, r"softcap=0\.8: no soft cap with sinks"),
        ({KEYWORD: PackedKV(torch.tensor([17]), torch.tensor([17]), None)}, "no soft cap of packed requests"),
        ({"dropout": 0.1}, r"dropout=0\.1: .*, and SDPA has no soft cap"),
        ({"mask": torch.zeros(B, 1, 17, 17)}, "float32.*, and SDPA has no soft cap"),
    ],
)
def test_refusals(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        attend(17, 17, **arguments)


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_gemma2(padding: str | None) -> None:
    mask = torch.ones_like(IDS)
    if padding is not None:
        mask[1, :17] = 0
        mask = mask if padding == "left" else mask.flip(1)
    with torch.no_grad(), Recorder() as recorder:
        wanted, got = (
            GEMMA2.build(name)(IDS, attention_mask=mask).logits for name in ("eager", "ascend_fia")
        )
    assert len(recorder.named("ascend_fia.softcap_attention")) == 2
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_gemma2_generates(cache: str) -> None:
    mask = torch.ones_like(IDS)
    mask[0, :20] = 0
    tokens = [
        GEMMA2.build(name).generate(
            IDS,
            attention_mask=mask,
            cache_implementation=cache,
            max_new_tokens=8,
            do_sample=False,
            disable_compile=True,
        )
        for name in ("eager", "ascend_fia")
    ]
    assert tokens[0].tolist() == tokens[1].tolist()


@pytest.mark.nightly
def test_gemma2_compiles_whole() -> None:
    model = GEMMA2.build("ascend_fia")
    compiled = torch.compile(model, backend="ascend_fia", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS).logits, model(IDS).logits, atol=1e-5, rtol=0)
