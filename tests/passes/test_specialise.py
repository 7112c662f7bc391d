"""``torch.compile(dynamic=True)``: what an operator takes as a plain number is fixed under a guard."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import npu_compile
from tests.models.cases import ids
from tests.models.tiny import FAMILIES
from tests.passes.graphs import random

Tensor = torch.Tensor


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaling = 0.3

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(2, 3)) * self.scaling).softmax(-1) @ v


def oracle(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(scale).exp()
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), v)


def qkv(queries: int, keys: int, width: int = 16) -> tuple[Tensor, ...]:
    q, k = random(2, 4, queries, width), random(2, 4, keys, width, seed=1)
    return q, k, random(2, 4, keys, width, seed=2)


def lowered() -> list[bool]:
    return [site.lowered for graph in npu_compile.last_report().graphs for site in graph.sites]


def test_a_scale_that_became_an_input_is_guarded() -> None:
    """Another scale is another graph; other lengths are not."""
    module = Attention()
    compiled = torch.compile(module, backend="ascend_fia", dynamic=True)
    for queries, keys in ((9, 13), (5, 17), (17, 54)):
        inputs = qkv(queries, keys)
        torch.testing.assert_close(compiled(*inputs).double(), oracle(*inputs, 0.3), atol=1e-5, rtol=0)
    assert lowered() == [True]
    module.scaling = 0.7
    torch.testing.assert_close(compiled(*inputs).double(), oracle(*inputs, 0.7), atol=1e-5, rtol=0)
    assert lowered() == [True, True]


def test_another_head_dim_is_another_graph() -> None:
    compiled = torch.compile(F.scaled_dot_product_attention, backend="ascend_fia", dynamic=True)
    for width in (16, 24):
        inputs = qkv(9, 13, width)
        torch.testing.assert_close(
            compiled(*inputs).double(), oracle(*inputs, width**-0.5), atol=1e-5, rtol=0
        )
    assert lowered() == [True, True]


def test_the_temperature_of_a_sampler_is_not_guarded() -> None:
    """A softmax that is no attention: another temperature is no other graph."""

    def sample(logits: Tensor, temperature: float) -> Tensor:
        return torch.softmax(logits / temperature, -1)

    counter = torch._dynamo.testing.CompileCounterWithBackend("ascend_fia")
    compiled = torch.compile(sample, backend=counter, dynamic=True)
    for step in range(5):
        logits, temperature = random(2, 97, seed=step), 0.5 + step / 7
        torch.testing.assert_close(compiled(logits, temperature), torch.softmax(logits / temperature, -1))
    assert counter.frame_count == 1


@pytest.mark.parametrize("dim", [1, 3])
def test_what_the_user_has_marked_as_dynamic_stays_so(dim: int) -> None:
    inputs = qkv(9, 13)
    for x in inputs:
        torch._dynamo.mark_dynamic(x, dim)
    compiled = torch.compile(F.scaled_dot_product_attention, backend="ascend_fia")
    torch.testing.assert_close(compiled(*inputs).double(), oracle(*inputs, 0.25), atol=1e-5, rtol=0)
    (site,) = npu_compile.last_report().sites
    assert not site.lowered and "symbolic" in (site.reason or "")


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_models(name: str, attention: str) -> None:
    family = FAMILIES[name]
    if attention == "flex_attention" and name != "llama":
        pytest.skip("one is enough")
    model = family.build(attention)
    compiled = torch.compile(model.forward, backend="ascend_fia", dynamic=True)
    for length in (9, 13):
        given = {"input_ids": ids(length=length)}
        if family.kind == "seq2seq":
            given["decoder_input_ids"] = ids(length=5)
        with torch.no_grad():
            expected, actual = model(**given).logits, compiled(**given).logits
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert lowered() == [True] * family.sites
