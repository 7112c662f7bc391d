"""Attention with its axes in any order and number: lowered, with the numbers of float64 loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import npu_compile
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph, random

B, N, G, Q, K, D, V = 2, 4, 2, 5, 17, 16, 8
Tensor = torch.Tensor
einsum = torch.einsum


def inputs(kv_heads: int) -> tuple[Tensor, ...]:
    """q (B, N, Q, D), k (B, kv_heads, K, D), v (B, kv_heads, K, V), a bias (B, 1, Q, K) with masks."""
    bias = random(B, 1, Q, K, seed=3)
    bias[0, :, :, 9:] = torch.finfo(torch.float32).min
    return random(B, N, Q, D), random(B, kv_heads, K, D, seed=1), random(B, kv_heads, K, V, seed=2), bias


def oracle(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float = 1.0) -> Tensor:
    """(B, N, Q, V): one batch element and head at a time, in float64."""
    q, k, v, bias = (x.double() for x in (q, k, v, bias))
    group = N // k.shape[1]
    out = torch.empty(B, N, Q, V, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            scores = q[b, n] @ k[b, n // group].T * scale + bias[b, 0]
            out[b, n] = scores.softmax(-1) @ v[b, n // group]
    return out


def attend_grouped(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Key heads broadcast over a fifth dimension."""
    scores = q.view(B, G, N // G, Q, D) @ k[:, :, None].mT + m[:, :, None]
    return (scores.softmax(-1) @ v[:, :, None]).reshape(B, N, Q, V)


def attend_flat(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Bloom: a bias for batch and heads in one dimension goes into baddbmm."""
    bias = m.expand(B, N, Q, K).reshape(B * N, Q, K) * 0.5
    q, k, v = (x.reshape(B * N, *x.shape[2:]) for x in (q, k, v))
    scores = bias.baddbmm(q, k.transpose(1, 2), beta=2.0, alpha=0.25).view(B, N, Q, K)
    return torch.bmm(scores.softmax(-1).view(B * N, Q, K), v).view(B, N, Q, V)


def attend_rows(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """MQA: all heads' queries are the rows of one product."""
    scores = (q.reshape(B, N * Q, D) @ k[:, 0].mT).view(B, N, Q, K) + m
    return (scores.softmax(-1).view(B, N * Q, K) @ v[:, 0]).view(B, N, Q, V)


def tokens_first(equation: str, *operands: Tensor) -> Tensor:
    return einsum(equation, *(x.transpose(1, 2) for x in operands))


FORMS: dict[str, tuple[Callable[..., Tensor], int, float]] = {
    "einsum with an ellipsis": (
        lambda q, k, v, m: einsum(
            "...qk,...kd->...qd", (einsum("...qd,...kd->...qk", q, k) + m).softmax(-1), v
        ),
        N,
        1.0,
    ),
    "einsum with tokens first and an ellipsis inside": (
        lambda q, k, v, m: einsum(
            "b...qk,bk...d->b...qd",
            (tokens_first("bq...d,bk...d->b...qk", q, k) + m).softmax(-1),
            v.transpose(1, 2),
        ),
        N,
        1.0,
    ),
    "einsum of keys without heads": (
        lambda q, k, v, m: einsum(
            "bhqk,bkd->bhqd", (einsum("bhqd,bkd->bhqk", q, k[:, 0]) + m).softmax(-1), v[:, 0]
        ),
        1,
        1.0,
    ),
    "einsum of groups": (
        lambda q, k, v, m: einsum(
            "bhgqk,bhkd->bhgqd",
            (einsum("bhgqd,bhkd->bhgqk", q.view(B, G, N // G, Q, D), k) + m[:, :, None]).softmax(-1),
            v,
        ).reshape(B, N, Q, V),
        G,
        1.0,
    ),
    "keys times queries, turned": (lambda q, k, v, m: ((k @ q.mT).mT * 0.3 + m).softmax(-1) @ v, N, 0.3),
    "values times probabilities, turned": (
        lambda q, k, v, m: (v.mT @ (q @ k.mT + m).softmax(-1).mT).mT,
        N,
        1.0,
    ),
    "softmax over the other axis of keys times queries": (
        lambda q, k, v, m: (v.mT @ (k @ q.mT + m.mT).softmax(-2)).mT,
        N,
        1.0,
    ),
    "heads before batch": (
        lambda q, k, v, m: (
            (q.transpose(0, 1) @ k.transpose(0, 1).mT + m.transpose(0, 1)).softmax(-1).transpose(0, 1) @ v
        ),
        N,
        1.0,
    ),
    "scaled after the mask": (lambda q, k, v, m: ((q @ k.mT + m / 0.3) * 0.3).softmax(-1) @ v, N, 0.3),
    "a mask subtracted": (lambda q, k, v, m: (q @ k.mT - -m).softmax(-1) @ v, N, 1.0),
    "grouped in five dimensions": (attend_grouped, G, 1.0),
    "batch and heads in one dimension": (attend_flat, N, 0.25),
    "heads and queries in one dimension": (attend_rows, 1, 1.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    function, kv_heads, scale = FORMS[form]
    tensors = inputs(kv_heads)
    module, heads = lowered(function, *tensors)
    # Which of two axes that nothing tells apart is called heads goes by their order.
    assert heads == ((B, B) if form == "heads before batch" else (N, kv_heads))
    torch.testing.assert_close(module(*tensors).double(), oracle(*tensors, scale), atol=1e-5, rtol=0)


def lowered(
    function: Callable[..., Tensor], *tensors: Tensor
) -> tuple[torch.fx.GraphModule, tuple[int, int]]:
    """The lowered graph, and the heads of queries and keys."""
    ensure_graph_ops()
    module = aten_graph(function, *tensors)
    (outcome,) = lower(module, recognise(module.graph), Target.CPU)
    assert outcome.lowered, outcome.reason
    verify(module.graph)
    return module, (outcome.num_heads or 0, outcome.num_key_value_heads or 0)


@pytest.mark.parametrize("kind", ["by hand", "sdpa"])
@pytest.mark.parametrize("masks", ["none", "shared", "of their own"])
def test_five_dimensions(kind: str, masks: str) -> None:
    """Windows of an image: (B, W, N, S, D)."""
    windows = 3
    q, k, v = (random(B, windows, N, s, d, seed=i) for i, (s, d) in enumerate(((Q, D), (K, D), (K, V))))
    shape = {"none": (1,), "shared": (1, 1, 1, Q, K), "of their own": (1, windows, 1, Q, K)}[masks]
    mask = random(*shape, seed=4)

    def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ((q @ k.mT) * 0.25 + mask).softmax(-1) @ v

    def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=None if masks == "none" else mask)

    module, heads = lowered(by_hand if kind == "by hand" else sdpa, q, k, v, mask)
    assert heads == (N, N)
    out = torch.empty(B, windows, N, Q, V, dtype=torch.float64)
    bias = mask.double().expand(1, windows, 1, Q, K) if masks != "none" else torch.zeros(1, windows, 1, Q, K)
    for b in range(B):
        for w in range(windows):
            for n in range(N):
                scores = q[b, w, n].double() @ k[b, w, n].double().T / 4 + bias[0, w, 0]
                out[b, w, n] = scores.softmax(-1) @ v[b, w, n].double()
    torch.testing.assert_close(module(q, k, v, mask).double(), out, atol=1e-5, rtol=0)


def test_batch_and_heads_of_the_result_swapped() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return einsum("bhqk,bhkd->hbqd", (q @ k.mT + m).softmax(-1), v)

    tensors = inputs(N)
    module, _ = lowered(attend, *tensors)
    got = module(*tensors).double()
    torch.testing.assert_close(got, oracle(*tensors).transpose(0, 1), atol=1e-5, rtol=0)


def test_five_dimensions_of_symbolic_sizes() -> None:
    """The number of windows changes: no tensor of the program has the size of batch times windows."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        by_hand = ((q @ k.mT) * 0.25 + mask).softmax(-1) @ v
        return by_hand + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    compiled = torch.compile(attend, backend="ascend_fia", fullgraph=True)
    for windows, keys in ((3, 17), (5, 11)):
        q, k, v = (random(B, windows, N, s, D, seed=i) for i, s in enumerate((Q, keys, keys)))
        mask = random(1, windows, 1, Q, keys, seed=4)
        for tensor, axes in ((q, [1]), (k, [1, 3]), (v, [1, 3]), (mask, [1, 4])):
            torch._dynamo.mark_dynamic(tensor, axes)
        scores = torch.einsum("bwnqd,bwnkd->bwnqk", q.double(), k.double()) / 4 + mask.double()
        wanted = 2 * torch.einsum("bwnqk,bwnkd->bwnqd", scores.softmax(-1), v.double())
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v, mask).double(), wanted, atol=1e-5, rtol=0)
    report = npu_compile.last_report()
    assert [site.reason for site in report.left] == [] and report.sites
