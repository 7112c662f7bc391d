"""flex_attention: lowered where its mods are masks and biases, left with a reason elsewhere, right always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import npu_compile
from npu_compile.kernels.targets import Target
from npu_compile.passes.flex.attention import write_out_flex_attention
from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import SiteOutcome
from npu_compile.pipeline import run_passes
from tests.passes.flex.oracle import oracle
from tests.passes.graphs import aten_graph, random

B, N, KV, Q, K, D = 2, 6, 3, 17, 17, 16


def qkv(queries: int = Q, keys: int = K, kv_heads: int = KV) -> tuple[Tensor, Tensor, Tensor]:
    return (
        random(B, N, queries, D),
        random(B, kv_heads, keys, D, seed=1),
        random(B, kv_heads, keys, D, seed=2),
    )


def compiled(
    function: Callable[..., Any], *inputs: Any, **options: Any
) -> tuple[Any, tuple[SiteOutcome, ...]]:
    torch._dynamo.reset()
    with torch.no_grad():
        out = torch.compile(function, backend="ascend_fia", **options)(*inputs)
    return out, tuple(npu_compile.last_report().sites)


def near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=0)


PADDING = torch.tensor([[1] * 17, [1] * 12 + [0] * 5]).bool()
LENGTHS = torch.tensor([17, 12])
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 9 + [2] * 3, [4] * 1 + [3] * 16])

MASKS: dict[str, tuple[Callable[..., Any], int]] = {
    "causal": (lambda b, h, i, j: i >= j, 3),
    "sliding": (lambda b, h, i, j: (i >= j) & (i - j < 5), 4),
    "both sides": (lambda b, h, i, j: (i - j <= 3) & (j - i <= 3), 4),
    "prefix": (lambda b, h, i, j: (j < 6) | (j <= i), 1),
    "all": (lambda b, h, i, j: (i >= 0) | (j < 0), 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_indices(name: str) -> None:
    keep, sparse_mode = MASKS[name]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(keep, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    inputs = qkv()
    out, (site,) = compiled(attend, *inputs)
    near(out, oracle(*inputs, keep))
    assert (site.sparse_mode, site.num_heads, site.num_key_value_heads) == (sparse_mode, N, KV)


CAPTURING: dict[str, tuple[Tensor, Callable[..., Any], str]] = {
    "padding": (PADDING, lambda t, b, h, i, j: (i >= j) & t[b, j], "causal, padding mask"),
    "lengths": (LENGTHS, lambda t, b, h, i, j: j < t[b], "keys below"),
    "documents": (DOCUMENTS, lambda t, b, h, i, j: (t[b, i] == t[b, j]) & (j <= i), "same block"),
    "head": (torch.tensor([1, 17, 2, 3, 5, 17]), lambda t, b, h, i, j: i - j < t[h], ""),
}


@pytest.mark.parametrize("name", CAPTURING)
def test_masks_of_captured_tensors_follow_their_values(name: str) -> None:
    """The program is compiled with other values than it runs with."""
    table, keep, words = CAPTURING[name]

    def attend(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return keep(t, b, h, i, j)

        heads = N if name == "head" else None
        mask = create_block_mask(mask_mod, B, heads, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    inputs = qkv()
    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(attend, backend="ascend_fia")
        run(*inputs, torch.ones_like(table))
        out = run(*inputs, table)
    near(out, oracle(*inputs, lambda b, h, i, j: keep(table, b, h, i, j)))
    (site,) = npu_compile.last_report().sites
    assert site.op is not None and words in site.mask


SLOPES = torch.tensor([0.5, -0.25, 0.125, 1.0, 0.75, 0.0])
TABLE = random(N, Q, K, seed=7)
WITH_MINUS_INFINITY = random(B, 1, Q, K, seed=8).masked_fill(random(B, 1, Q, K, seed=9) > 0.8, -torch.inf)

SCORE_MODS: dict[str, Callable[..., Any]] = {
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "subtracted": lambda s, b, h, i, j: s - TABLE[h, i, j],
    "mask and bias": lambda s, b, h, i, j: s + WITH_MINUS_INFINITY[b][0][i][j],
    "scaled first": lambda s, b, h, i, j: s * 0.5 / 2 + TABLE[h, i, j],
}


@pytest.mark.parametrize("name", SCORE_MODS)
def test_biases(name: str) -> None:
    score = SCORE_MODS[name]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, Q, K, device="cpu")
        return flex_attention(q, k, v, score, mask, scale=0.3, enable_gqa=True)

    inputs = qkv()
    out, (site,) = compiled(attend, *inputs)
    near(out, oracle(*inputs, lambda b, h, i, j: j <= i, score, scale=0.3))
    assert site.op is not None


def test_mask_in_the_score_mod() -> None:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j <= i, s, -float("inf"))

    inputs = qkv()
    out, (site,) = compiled(lambda q, k, v: flex_attention(q, k, v, score, enable_gqa=True), *inputs)
    near(out, oracle(*inputs, lambda b, h, i, j: j <= i))
    assert (site.mask, site.sparse_mode) == ("causal", 3)


def test_rows_that_keep_nothing_give_zero() -> None:
    def keep(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (j >= 4)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(keep, None, None, Q, K, device="cpu")
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    inputs = qkv()
    out, (site,) = compiled(attend, *inputs)
    assert site.op is not None and torch.equal(out[:, :, :4], torch.zeros(B, N, 4, D))
    near(out, oracle(*inputs, keep))


def test_a_block_mask_is_what_its_mask_mod_says() -> None:
    """Blocks of another mask are the program's mistake; torch on the CPU does not look at them either."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: j < 1, None, None, Q, K, device="cpu", BLOCK_SIZE=16)
        mask.mask_mod = lambda b, h, i, j: j <= i
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    inputs = qkv()
    out, _ = compiled(attend, *inputs)
    near(out, oracle(*inputs, lambda b, h, i, j: j <= i))
    torch.testing.assert_close(out, attend(*inputs), atol=1e-5, rtol=0)


def _scaled_bias(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (s + SLOPES[h]) * 2


def _squared(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s * s


@pytest.mark.parametrize(
    ("score", "reason"),
    [(_scaled_bias, "after it added a bias"), (_squared, "aten.mul")],
)
def test_other_score_mods_are_left_and_right(score: Callable[..., Any], reason: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score, enable_gqa=True)

    inputs = qkv(queries=5, keys=9)
    out, (site,) = compiled(attend, *inputs)
    numbers = SLOPES.tolist()
    by_name: dict[Any, Callable[..., float]] = {
        _scaled_bias: lambda s, b, h, i, j: (s + numbers[h]) * 2,
        _squared: lambda s, b, h, i, j: s * s,
    }
    near(out, oracle(*inputs, score=by_name[score]))
    assert site.op is None and site.form == "flex" and reason in str(site.reason)


def test_returned_log_sum_exp_is_left() -> None:
    """torch returns it on devices only: the operator is called as it is there."""

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    block_mask = create_block_mask(keep, None, None, 5, 5, device="cpu").as_tuple()
    blocks = [one for one in block_mask if isinstance(one, Tensor)]

    def attend(q: Tensor, k: Tensor, v: Tensor, *blocks: Tensor) -> tuple[Tensor, Tensor]:
        given = iter(blocks)
        mask = tuple(next(given) if isinstance(one, Tensor) else one for one in block_mask)
        out, lse, _ = torch.ops.higher_order.flex_attention(
            q, k, v, lambda s, b, h, i, j: s, mask, 0.25, {}, (), ()
        )
        return out, lse

    module = aten_graph(attend, *qkv(5, 5), *blocks)
    write_out_flex_attention(module)
    assert recognise(module.graph).sites == ()
    (refusal,) = recognise(module.graph).refusals
    assert "log-sum-exp" in refusal.reason


def passed(function: Callable[..., Any], *inputs: Any) -> tuple[Tensor, fx.GraphModule]:
    """What ``function`` computes after all passes, and its graph."""
    graphs = []

    def backend(module: fx.GraphModule, examples: Any) -> Any:
        graphs.append(run_passes(module, examples, Target.CPU).module)
        return graphs[-1].forward

    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend)(*inputs), graphs[0]


def test_layers_share_their_mask() -> None:
    def two_layers(q: Tensor, k: Tensor, v: Tensor, padding: Tensor) -> Tensor:
        def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (j <= i) & padding[b, j]

        mask = create_block_mask(mask_mod, B, None, Q, K, device="cpu")
        q = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    out, module = passed(two_layers, *qkv(), PADDING)

    def keep(b: int, h: int, i: int, j: int) -> bool:
        return j <= i and bool(PADDING[b, j])

    q, k, v = qkv()
    near(out, oracle(oracle(q, k, v, keep), k, v, keep))
    fused = [n for n in module.graph.nodes if "npu_fused" in str(n.target)]
    assert len(fused) == 2
    assert fused[0].kwargs["atten_mask"] is fused[1].kwargs["atten_mask"]
    assert not any("index_put" in str(n.target) for n in module.graph.nodes), "the block mask is not needed"


def test_symbolic_lengths() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return j <= i + (k.shape[2] - q.shape[2])

        mask = create_block_mask(keep, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    torch._dynamo.reset()
    run = torch.compile(attend, backend="ascend_fia")
    for queries, keys in ((5, 17), (7, 23), (3, 54)):
        inputs = qkv(queries, keys)
        for one, axis in ((inputs[0], 2), (inputs[1], 2), (inputs[2], 2)):
            torch._dynamo.mark_dynamic(one, axis)
        with torch.no_grad():
            out = run(*inputs)
        near(out, oracle(*inputs, lambda b, h, i, j, d=keys - queries: j <= i + d))
    assert [site.sparse_mode for site in npu_compile.last_report().sites] == [3]
