"""Soft caps in a score_mod: lowered with the scale and the cap that they amount to, or left with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import npu_compile
from npu_compile.passes.flex.attention import is_flex_attention, write_out_flex_attention
from npu_compile.passes.recognise import recognise
from npu_compile.passes.values import aten
from tests.passes.flex.oracle import oracle
from tests.passes.flex.test_attention import B, D, N, compiled, near, passed, qkv
from tests.passes.graphs import aten_graph, random

Q, K = 17, 54
SCALE = 0.7
SLOPES = torch.tensor([0.5, -0.25, 0.125, 1.0, 0.75, 0.0])
TABLE = random(B, 1, Q, K, seed=8).masked_fill(random(B, 1, Q, K, seed=9) > 0.8, -torch.inf)


def capped(score: float, cap: float) -> float:
    return cap * math.tanh(score / cap)


CAPS: dict[str, tuple[Callable[..., Any], Callable[..., float], float, float]] = {
    # What the mod computes for Python numbers; the scale and the cap of the call.
    "as transformers has it": (
        lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5),
        lambda s, b, h, i, j: capped(s, 1.5),
        0.7,
        1.5,
    ),
    "with a bias": (
        lambda s, b, h, i, j: torch.tanh(s / 1.5) * 1.5 + SLOPES[h] * (j - i),
        lambda s, b, h, i, j: capped(s, 1.5) + float(SLOPES[h]) * (j - i),
        0.7,
        1.5,
    ),
    "with a mask of scores": (
        lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5) + TABLE[b][0][i][j],
        lambda s, b, h, i, j: capped(s, 1.5) + float(TABLE[b, 0, i, j]),
        0.7,
        1.5,
    ),
    "masked": (
        lambda s, b, h, i, j: torch.where(j <= i + h, 1.5 * torch.tanh(s / 1.5), -float("inf")),
        lambda s, b, h, i, j: capped(s, 1.5) if j <= i + h else -math.inf,
        0.7,
        1.5,
    ),
    "other numbers inside and outside": (
        lambda s, b, h, i, j: 2 * torch.tanh(s * 0.4),
        lambda s, b, h, i, j: 2 * math.tanh(s * 0.4),
        0.7 * 0.8,
        2.0,
    ),
    "scaled before it": (
        lambda s, b, h, i, j: torch.tanh(s * 0.5 / 1.5) / 0.5,
        lambda s, b, h, i, j: 2 * math.tanh(s / 3),
        0.7 * 2 / 3,
        2.0,
    ),
    "no number": (lambda s, b, h, i, j: torch.tanh(s), lambda s, b, h, i, j: math.tanh(s), 0.7, 1.0),
    "a number that is a tensor": (
        lambda s, b, h, i, j: s.new_full((), 1.5) * torch.tanh(s / torch.tensor(1.5)),
        lambda s, b, h, i, j: capped(s, 1.5),
        0.7,
        1.5,
    ),
    "changed signs": (
        lambda s, b, h, i, j: 2 * torch.tanh(s * -0.4),
        lambda s, b, h, i, j: 2 * math.tanh(s * -0.4),
        -0.7 * 0.8,
        2.0,
    ),
}


@pytest.mark.parametrize("name", CAPS)
def test_caps(name: str) -> None:
    score, meaning, scale, softcap = CAPS[name]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(lambda b, h, i, j: i - j < 5, None, None, Q, K, device="cpu")
        return flex_attention(q, k, v, score, mask, scale=SCALE, enable_gqa=True)

    inputs = qkv(Q, K)
    out, module = passed(attend, *inputs)
    near(out, oracle(*inputs, lambda b, h, i, j: i - j < 5, meaning, SCALE))
    (call,) = (node for node in module.graph.nodes if "softcap" in str(node.target))
    assert call.kwargs["scale"] == pytest.approx(scale) and call.kwargs["softcap"] == pytest.approx(softcap)
    assert call.kwargs["num_key_value_heads"] == 3
    assert not any(is_flex_attention(node) or "tanh" in str(node.target) for node in module.graph.nodes)


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: j <= i, B, None, q.shape[2], k.shape[2], device="cpu")
    return flex_attention(q, k, v, lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5), mask, enable_gqa=True)


@pytest.mark.parametrize("keys", [1, K, 97])
@pytest.mark.parametrize("queries", [1, Q])
def test_causal_attention_has_no_mask_of_its_own(queries: int, keys: int) -> None:
    inputs = qkv(queries, keys)
    out, (site,) = compiled(attend_causally, *inputs)
    near(out, oracle(*inputs, lambda b, h, i, j: j <= i, lambda s, b, h, i, j: capped(s, 0.5)))
    assert (site.op, site.num_key_value_heads) == ("softcap_attention", 3)
    assert site.sparse_mode in ({3, 2} if queries > 1 and keys > 1 else {0})


def test_keys_and_values_of_one_request_for_all() -> None:
    q, k, v = qkv(Q, K)
    out, (site,) = compiled(attend_causally, q, k[:1], v[:1])
    wide = (x[:1].expand_as(x) for x in (k, v))
    near(out, oracle(q, *wide, lambda b, h, i, j: j <= i, lambda s, b, h, i, j: capped(s, 0.5)))
    assert (site.op, site.num_key_value_heads) == ("softcap_attention", 3)


def test_rows_that_keep_nothing_give_zero() -> None:
    def keep(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j <= i) & (j >= 4)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(keep, None, None, Q, K, device="cpu")
        return flex_attention(q, k, v, lambda s, b, h, i, j: torch.tanh(s), mask, enable_gqa=True)

    inputs = qkv(Q, K)
    out, (site,) = compiled(attend, *inputs)
    assert site.op == "softcap_attention" and torch.equal(out[:, :, :4], torch.zeros(B, N, 4, D))
    near(out, oracle(*inputs, keep, lambda s, b, h, i, j: math.tanh(s)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_attention_written_by_hand(dtype: torch.dtype) -> None:
    """flex_attention itself is closer: its scores are in float32, and not rounded before the cap."""
    inputs = tuple(x.to(dtype) for x in qkv(97, 97))
    out, _ = compiled(attend_causally, *inputs)
    q, k, v = inputs[0], *(x.repeat_interleave(2, 1) for x in inputs[1:])
    scores = (torch.tanh((q @ k.mT) * (D**-0.5 / 0.5)) * 0.5).masked_fill(
        torch.ones(97, 97).triu(1) > 0, -torch.inf
    )
    by_hand = scores.softmax(-1, dtype=torch.float32).to(dtype) @ v
    wanted = oracle(*inputs, lambda b, h, i, j: j <= i, lambda s, b, h, i, j: capped(s, 0.5))
    assert out.dtype == dtype
    assert (out.double() - wanted).abs().max() <= 1.1 * (by_hand.double() - wanted).abs().max()


class Capped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softcap = 0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cap = self.softcap
        return flex_attention(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap), enable_gqa=True)


def test_a_cap_that_became_an_input_is_guarded() -> None:
    """dynamic=True: another cap is another graph, another length is not."""
    torch._dynamo.reset()
    module, made = Capped(), []
    run = torch.compile(module, backend="ascend_fia", dynamic=True)
    for cap, keys in ((0.5, K), (0.5, 97), (0.8, K)):
        module.softcap = cap
        inputs = qkv(Q, keys)
        with torch.no_grad():
            out = run(*inputs)
        near(out, oracle(*inputs, score=lambda s, b, h, i, j, c=cap: capped(s, c)))
        made.append([site.op for graph in npu_compile.last_report().graphs for site in graph.sites])
    assert made == [["softcap_attention"]] * 2 + [["softcap_attention"] * 2]


REFUSED: dict[str, tuple[Callable[..., Any], Callable[..., float], str]] = {
    "twice": (
        lambda s, b, h, i, j: torch.tanh(2 * torch.tanh(s)),
        lambda s, b, h, i, j: math.tanh(2 * math.tanh(s)),
        "soft-caps the scores (tanh) twice",
    ),
    "a bias inside": (
        lambda s, b, h, i, j: 5 * torch.tanh((s + SLOPES[h]) / 5),
        lambda s, b, h, i, j: capped(s + float(SLOPES[h]), 5),
        "(tanh) after it added a bias or a mask",
    ),
    "a mask inside": (
        lambda s, b, h, i, j: 5 * torch.tanh(torch.where(j <= i, s, -float("inf")) / 5),
        lambda s, b, h, i, j: capped(s, 5) if j <= i else -5.0,
        "(tanh) after it added a bias or a mask",
    ),
    "a negative number": (
        lambda s, b, h, i, j: -5 * torch.tanh(s / 5),
        lambda s, b, h, i, j: -capped(s, 5),
        "(tanh) by a number that is not positive",
    ),
    "nothing left of the scores": (
        lambda s, b, h, i, j: 5 * torch.tanh(s * 0),
        lambda s, b, h, i, j: 0.0,
        "(tanh) by a number that is not positive",
    ),
    "scaled after a bias": (
        lambda s, b, h, i, j: 2 * (torch.tanh(s) + SLOPES[h]),
        lambda s, b, h, i, j: 2 * (math.tanh(s) + float(SLOPES[h])),
        "scales the scores after it added a bias",
    ),
    "a cap for each head": (
        lambda s, b, h, i, j: (h + 1) * torch.tanh(s / (h + 1)),
        lambda s, b, h, i, j: capped(s, h + 1),
        "applies aten.mul.Tensor to the scores",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_soft_cap_is_left_and_right(name: str) -> None:
    score, meaning, words = REFUSED[name]
    inputs = qkv(5, 9)
    out, (site,) = compiled(lambda q, k, v: flex_attention(q, k, v, score, enable_gqa=True), *inputs)
    near(out, oracle(*inputs, score=meaning))
    assert site.op is None and site.form == "flex" and words in str(site.reason)


def traced(queries: int, keys: int, with_lse: bool = False) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """A call of the higher-order operator with a cap, causal; and what it is called with."""

    def keep(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    blocks = create_block_mask(keep, None, None, queries, keys, device="cpu").as_tuple()
    tensors = [one for one in blocks if isinstance(one, Tensor)]

    def attend(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Any:
        given = iter(tensors)
        mask = tuple(next(given) if isinstance(one, Tensor) else one for one in blocks)
        found = torch.ops.higher_order.flex_attention(
            q, k, v, lambda s, b, h, i, j: 0.5 * torch.tanh(s / 0.5), mask, SCALE, {}, (), ()
        )
        return found[:2] if with_lse else found[0]

    inputs = (*qkv(queries, keys), *tensors)
    return aten_graph(attend, *inputs), inputs


def test_what_is_written_out_computes_the_same_where_it_is_not_lowered() -> None:
    module, inputs = traced(Q, K)
    write_out_flex_attention(module)
    module.recompile()
    assert not any(is_flex_attention(node) for node in module.graph.nodes)
    q, k, v = inputs[:3]
    wanted = oracle(q, k, v, lambda b, h, i, j: j <= i, lambda s, b, h, i, j: capped(s, 0.5), SCALE)
    near(module(*inputs), wanted)


def test_a_returned_log_sum_exp_is_left() -> None:
    module, _ = traced(Q, K, with_lse=True)
    write_out_flex_attention(module)
    (refusal,) = recognise(module.graph).refusals
    assert "log-sum-exp" in refusal.reason and refusal.form == "flex"


def test_a_log_sum_exp_that_nothing_reads_is_no_reason() -> None:
    module, _ = traced(Q, K, with_lse=True)
    (output,) = module.graph.find_nodes(op="output")
    results: Any = output.args[0]
    attention, lse = results
    with module.graph.inserting_before(output):
        module.graph.call_function(aten.mul.Tensor, (lse, 2.0))
    output.args = ((attention,),)
    write_out_flex_attention(module)
    assert not any(is_flex_attention(node) for node in module.graph.nodes)
