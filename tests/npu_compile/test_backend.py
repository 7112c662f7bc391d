"""The backend as torch.compile calls it: what the options change, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import StaticCache

import npu_compile
from npu_compile.errors import AscendFiaError
from tests.models.cases import static_decode
from tests.models.tiny import FAMILIES
from tests.passes.graphs import random


class Attention(torch.nn.Module):
    """One projection and one attention."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 16)
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.project(x)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=self.p)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="ascend_fia", options=options or None)


def test_training_stays_differentiable_and_says_so() -> None:
    model, x = Attention(), random(2, 3, 7, 16)
    compiled(model)(x).sum().backward()
    got = model.project.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(got, model.project.weight.grad)
    (graph,) = npu_compile.last_report().graphs
    assert any("differentiable" in note for note in graph.notes)


def test_the_same_module_is_lowered_without_gradients() -> None:
    model, x = Attention(), random(2, 3, 7, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), atol=1e-5, rtol=0)
    assert len(npu_compile.last_report().lowered) == 1


def test_a_fault_in_a_pass_costs_the_fused_operators_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: Any) -> None:
        raise ZeroDivisionError("by the test")

    monkeypatch.setattr("npu_compile.pipeline.lower", faulty)
    model, x = Attention(), random(2, 3, 7, 16)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="fault of npu-compile: ZeroDivisionError: by the test"):
            got = compiled(model)(x)
        torch.testing.assert_close(got, model(x))
        assert not npu_compile.last_report().sites
        (graph,) = npu_compile.last_report().graphs
        assert any("ZeroDivisionError: by the test" in note for note in graph.notes)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="ZeroDivisionError: by the test"):
            compiled(model, strict=True)(x)


def test_active_dropout_is_left_as_it_was() -> None:
    with torch.no_grad():
        compiled(Attention(p=0.5))(random(2, 3, 7, 16))
    (site,) = npu_compile.last_report().left
    assert "dropout" in str(site.reason)


def test_strict_raises_with_the_reason() -> None:
    with torch.no_grad(), pytest.raises(Exception, match="dropout") as caught:
        compiled(Attention(p=0.5), strict=True)(random(2, 3, 7, 16))
    assert isinstance(getattr(caught.value, "inner_exception", caught.value), AscendFiaError)


def test_a_named_target_judges_by_its_operator() -> None:
    with torch.no_grad():
        compiled(Attention(), target="ascend910b")(random(2, 3, 7, 16))
    (site,) = npu_compile.last_report().left
    assert "float32" in str(site.reason)
    assert "bfloat16" in str(site.reason)


def test_autocast_is_kept() -> None:
    model, x = Attention(), random(2, 3, 7, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, got = model(x), compiled(model)(x)
    assert got.dtype == expected.dtype
    plain_error = (expected.double() - model.double()(x.double())).abs().max()
    own_error = (got.double() - model(x.double())).abs().max()
    assert own_error <= 2 * plain_error


@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
def test_inner_backend_keeps_the_fused_calls_and_the_cache(inner: str) -> None:
    model = FAMILIES["llama"].build("sdpa")
    with torch.no_grad():
        expected = static_decode(FAMILIES["llama"], model, model.forward)
        actual = static_decode(FAMILIES["llama"], model, compiled(model.forward, inner_backend=inner))
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    assert len(npu_compile.last_report().lowered) == 4


def test_a_mode_that_captures_reports_its_update_plan() -> None:
    model = FAMILIES["llama"].build("sdpa")
    forward = torch.compile(model.forward, backend="ascend_fia", mode="reduce-overhead")
    with torch.no_grad():
        expected = static_decode(FAMILIES["llama"], model, model.forward)
        actual = static_decode(FAMILIES["llama"], model, forward)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    _, decode = npu_compile.last_report().graphs
    assert decode.capture is not None
    assert [row[3] for row in decode.capture.update_plan] == ["actual_seq_lengths_kv"] * 2
    assert "update of record {0-1}" in str(npu_compile.last_report())


def test_without_a_capturing_mode_nothing_is_captured() -> None:
    with torch.no_grad():
        compiled(Attention())(random(2, 3, 7, 16))
    assert npu_compile.last_report().graphs[0].capture is None


def test_nothing_keeps_a_model_alive() -> None:
    import gc
    import weakref

    model = FAMILIES["llama"].build("sdpa")
    weight = weakref.ref(model.lm_head.weight)
    cache = StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        compiled(model)(input_ids=torch.ones(1, 3, dtype=torch.int64), cache=cache)
    del model, cache
    torch._dynamo.reset()
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("halved", ["query", "keys"])
def test_autocast_halves_the_operands_that_are_not_halves_yet(halved: str) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v)

    q, k, v = random(2, 3, 7, 16), random(2, 3, 17, 16, seed=1), random(2, 3, 17, 16, seed=2)
    operands = (q.bfloat16(), k, v) if halved == "query" else (q, k.bfloat16(), v.bfloat16())
    exact = F.scaled_dot_product_attention(*(x.bfloat16().double() for x in (q, k, v)))
    plain, got = attend(*operands), compiled(attend)(*operands)
    assert got.dtype == torch.bfloat16
    assert (got - exact).abs().max() <= 2 * (plain - exact).abs().max()
    assert len(npu_compile.last_report().lowered) == 1
