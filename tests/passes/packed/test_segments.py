"""Masks of segments behind each other: packed where that is proved, an explicit mask elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

import npu_compile
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph, random

B, N, KV, S, D = 2, 6, 3, 54, 16

IDS = torch.tensor([[0] * 17 + [1] * 1 + [2] * 36, [5] * 54])
BACK = torch.tensor([[0] * 17 + [1] * 20 + [0] * 17, [0, 1] * 27])
STARTS = torch.zeros(B, S, dtype=torch.bool)
STARTS[0, [0, 17, 18]] = STARTS[1, [3, 53]] = True
POSITIONS = torch.cat([torch.arange(17), torch.arange(1), torch.arange(36)])[None].expand(B, -1).clone()
POSITIONS[1] = torch.cat([torch.arange(5, 30), torch.arange(29)])


def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, keep, scale=0.3, enable_gqa=True)


def qkv(dtype: torch.dtype = torch.float32, kv_heads: int = KV, width: int = D) -> tuple[Tensor, ...]:
    return (
        random(B, N, S, width, dtype=dtype),
        random(B, kv_heads, S, width, seed=1, dtype=dtype),
        random(B, kv_heads, S, width, seed=2, dtype=dtype),
    )


def oracle(q: Tensor, k: Tensor, v: Tensor, keep: Callable[[int, int, int], bool]) -> Tensor:
    """float64, with a predicate over plain batch, query and key indices."""
    k, v = (x.double().repeat_interleave(N // x.shape[1], 1) for x in (k, v))
    kept = torch.tensor([[[keep(b, i, j) for j in range(S)] for i in range(S)] for b in range(B)])
    scores = torch.einsum("bnqd,bnkd->bnqk", q.double(), k) * 0.3
    return torch.einsum("bnqk,bnkd->bnqd", scores.masked_fill(~kept[:, None], -torch.inf).softmax(-1), v)


def lowered(
    function: Callable[..., Any], *inputs: Tensor, example: Tensor | None = None, target: Target = Target.CPU
) -> tuple[Tensor, SiteOutcome]:
    """``function`` traced with ``example`` for its last input, lowered, and run on ``inputs``."""
    ensure_graph_ops()
    module = aten_graph(function, *inputs[:-1], inputs[-1] if example is None else example)
    (outcome,) = lower(module, recognise(module.graph), target)
    verify(module.graph)
    return module(*copy.deepcopy(inputs)), outcome


def near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=0)


ROW, COLUMN = torch.arange(S)[:, None], torch.arange(S)[None]

CHUNKED: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], bool], int]] = {
    "causal": (lambda i, j: (i // 8 == j // 8) & (j <= i), lambda i, j: i // 8 == j // 8 and j <= i, 3),
    "whole": (lambda i, j: i // 13 == j // 13, lambda i, j: i // 13 == j // 13, 0),
    "shifted": (
        lambda i, j: ((j + 5) // 8 == (i + 5) // 8) & (j <= i),
        lambda i, j: (j + 5) // 8 == (i + 5) // 8 and j <= i,
        3,
    ),
    "window": (
        lambda i, j: (i // 20 == j // 20) & (j <= i) & (j > i - 4),
        lambda i, j: i // 20 == j // 20 and i - 4 < j <= i,
        4,
    ),
}


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks(name: str) -> None:
    mask, keep, sparse_mode = CHUNKED[name]

    def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, mask(torch.arange(S)[:, None], torch.arange(S)))

    out, outcome = lowered(chunked, *qkv())
    near(out, oracle(*qkv(), lambda b, i, j: keep(i, j)))
    assert (outcome.input_layout, outcome.sparse_mode) == ("TND", sparse_mode)


def test_chunks_of_a_symbolic_length() -> None:
    def chunked(q: Tensor) -> Tensor:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])
        return attend(q, q[:, :KV], q[:, KV:], (i // 8 == j // 8) & (j <= i))

    torch._dynamo.reset()
    run = torch.compile(chunked, backend="ascend_fia")
    for length in (17, 54, 33):
        x = qkv()[0][:, :, :length]
        torch._dynamo.mark_dynamic(x, 2)
        with torch.no_grad():
            out = run(x)
        q = qkv()[0]
        full = oracle(q, q[:, :KV], q[:, KV:], lambda b, i, j: i // 8 == j // 8 and j <= i)
        near(out, full[:, :, :length])
    assert {site.input_layout for site in npu_compile.last_report().sites} == {"TND"}


def test_segments_that_the_program_counts() -> None:
    """Traced with other starts than it runs with."""

    def counted(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        ids = starts.cumsum(-1)
        keep = (ids[:, :, None] == ids[:, None]) & (torch.arange(S) <= torch.arange(S)[:, None])
        return attend(q, k, v, keep[:, None])

    out, outcome = lowered(counted, *qkv(), STARTS, example=torch.zeros_like(STARTS))
    ids = STARTS.long().cumsum(-1).tolist()
    near(out, oracle(*qkv(), lambda b, i, j: ids[b][i] == ids[b][j] and j <= i))
    assert (outcome.input_layout, outcome.sparse_mode) == ("TND", 3)


def restarting(positions: Tensor, window: int | None = None) -> Tensor:
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    ids = (steps != 1).cumsum(-1)
    query, key = positions[:, :, None], positions[:, None]
    keep = (ids[:, :, None] == ids[:, None]) & (key <= query)
    return (keep if window is None else keep & (key > query - window))[:, None]


@pytest.mark.parametrize("window", [None, 4])
def test_positions_that_start_again(window: int | None) -> None:
    def packed(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        return attend(q, k, v, restarting(positions, window))

    out, outcome = lowered(packed, *qkv(), POSITIONS, example=torch.arange(S).expand(B, -1).clone())
    ends = [[17, 18, 54], [25, 54]]

    def keep(b: int, i: int, j: int) -> bool:
        together = sum(i >= end for end in ends[b]) == sum(j >= end for end in ends[b])
        return together and j <= i and (window is None or j > i - window)

    near(out, oracle(*qkv(), keep))
    assert (outcome.input_layout, outcome.sparse_mode) == ("TND", 3 if window is None else 4)


def _given(ids: Tensor) -> Tensor:
    return (ids[:, :, None] == ids[:, None])[:, None]


def _fallen(ids: Tensor) -> Tensor:
    """Running sums of numbers that may be negative."""
    return _given((ids - ids.roll(1, -1)).cumsum(-1))


def _of_other_positions(ids: Tensor) -> Tensor:
    """Positions that have nothing to do with where segments end."""
    numbers = (torch.diff(ids, prepend=ids[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    other = ids.flip(-1)
    return ((numbers[:, :, None] == numbers[:, None]) & (other[:, None] <= other[:, :, None]))[:, None]


def _second_differences(ids: Tensor) -> Tensor:
    steps = torch.diff(ids, n=2, prepend=ids[:, :2] - 1, dim=-1)
    numbers = (steps != 1).cumsum(-1)
    return ((numbers[:, :, None] == numbers[:, None]) & (ids[:, None] <= ids[:, :, None]))[:, None]


def _later_too(ids: Tensor) -> Tensor:
    numbers = (ids > 3).cumsum(-1)
    window = torch.arange(S) > torch.arange(S)[:, None] - 4
    return ((numbers[:, :, None] == numbers[:, None]) & window)[:, None]


def _padded(ids: Tensor) -> Tensor:
    numbers = (ids > 3).cumsum(-1)
    same = (numbers[:, :, None] == numbers[:, None]) & (torch.arange(S) <= torch.arange(S)[:, None])
    return (same & (ids != 1)[:, None])[:, None]


@pytest.mark.parametrize(
    "mask", [_given, _fallen, _of_other_positions, _second_differences, _later_too, _padded]
)
def test_what_is_not_proved_stays_a_mask(mask: Callable[[Tensor], Tensor]) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
        return attend(q, k, v, mask(ids))

    for ids in (BACK, IDS, POSITIONS):
        out, outcome = lowered(masked, *qkv(), ids)
        kept = mask(ids)
        dense = oracle(*qkv(), lambda b, i, j, kept=kept: bool(kept[b, 0, i, j]))
        near(out, dense.nan_to_num(0.0))
        assert outcome.lowered and outcome.input_layout != "TND"


@pytest.mark.parametrize(("width", "layout"), [(64, "TND"), (80, "TND"), (256, "BNSD_BSND")])
def test_devices(width: int, layout: str) -> None:
    inputs = qkv(torch.bfloat16, N, width)

    def chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(S)[:, None], torch.arange(S)
        return attend(q, k, v, (i // 8 == j // 8) & (j <= i))

    out, outcome = lowered(chunked, *inputs, target=Target.ASCEND910B)
    exact = oracle(*inputs, lambda b, i, j: i // 8 == j // 8 and j <= i)
    plain = chunked(*inputs).double()
    assert (out.double() - exact).abs().max() <= 2 * (plain - exact).abs().max()
    assert outcome.input_layout == layout
    assert any("not packed" in note for note in outcome.notes) == (layout != "TND")


TEXT = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS: dict[str, Any] = {
    "llama": hf.LlamaConfig(**TEXT),
    "mistral": hf.MistralConfig(**TEXT, sliding_window=5),
    "llama4_text": hf.Llama4TextConfig(
        **TEXT,
        attention_chunk_size=8,
        layer_types=["chunked_attention", "full_attention"],
        num_local_experts=2,
        intermediate_size_mlp=64,
    ),
}


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", MODELS)
def test_packed_sequences_of_hugging_face(name: str, attention: str) -> None:
    torch.manual_seed(0)
    config = copy.deepcopy(MODELS[name])
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    ids = torch.randint(0, 97, (2, 21), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(7), torch.arange(9), torch.arange(5)])[None].expand(2, -1)
    torch._dynamo.reset()
    run = torch.compile(model, backend="ascend_fia")
    with torch.no_grad():
        for given in ({}, {"position_ids": positions}):
            expected = model(ids, **given, use_cache=False).logits
            got = run(ids, **given, use_cache=False).logits
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    sites = npu_compile.last_report().sites
    assert len(sites) == 4 and all(site.lowered for site in sites)
    assert "TND" in {site.input_layout for site in sites}
