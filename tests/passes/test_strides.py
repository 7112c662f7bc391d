"""Programs that view, hand out or write through an attention output in the way that its own strides allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import npu_compile
from npu_compile.kernels.targets import Target
from npu_compile.pipeline import run_passes
from tests.models.cases import ids
from tests.models.tiny import FAMILIES
from tests.passes.graphs import random

B, N, Q, K, D = 2, 4, 9, 17, 16
Tensor = torch.Tensor


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.3).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.3).tanh().softmax(-1) @ v


def written_copy(out: Tensor) -> Any:
    copy = out.transpose(1, 2).contiguous()
    copy.mul_(2)
    return out.sum((1, 2)), copy


def written_view(out: Tensor) -> Any:
    view = out.reshape(B * N, Q, D)
    view.mul_(2)
    return out.sum((1, 2)), view


def written_merge(out: Tensor) -> Any:
    merged = out.transpose(1, 2).reshape(B, Q, -1)
    merged.mul_(2)
    return out.sum((1, 2)), merged


READERS: dict[str, Callable[[Tensor], Any]] = {
    "handed out": lambda out: out,
    "handed out with its double": lambda out: (out, out * 2),
    "heads and rows merged": lambda out: out.view(B, N * Q, D),
    "batch and heads merged": lambda out: out.view(B * N, Q, D),
    "a view of the double": lambda out: (out * 2).view(B * N, Q, D),
    "pieces": lambda out: [piece.view(B, -1) for piece in out.split(2, 1)],
    "turned in place": lambda out: (out.transpose_(1, 2), out.reshape(B, -1))[1],
    "as strided": lambda out: out.as_strided((B, N), (N * Q * D, Q * D)),
    "a copy that is written to": written_copy,
    "a view that is written to": written_view,
    "a merge that is written to": written_merge,
    "the way of transformers": lambda out: out.transpose(1, 2).contiguous().view(B, Q, N * D),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("attend", [by_hand, capped, F.scaled_dot_product_attention])
def test_what_readers_see(attend: Callable[..., Tensor], reader: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return READERS[reader](attend(q, k, v))

    inputs = random(B, N, Q, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2)
    expected = program(*inputs)
    actual = torch.compile(program, backend="ascend_fia")(*inputs)
    for got, want in zip(_listed(actual), _listed(expected), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        assert got.stride() == want.stride()
    (site,) = npu_compile.last_report().sites
    assert site.lowered


def _listed(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def copies(graph: torch.fx.Graph) -> int:
    return sum(node.target is torch.ops.aten.permute.default for node in graph.nodes)


def test_what_a_copy_looks_like() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(run_passes(module, inputs, Target.CPU).module.graph)
        return module.forward

    inputs = random(B, N, Q, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2)
    with torch.no_grad():
        torch.compile(by_hand, backend=backend)(*inputs)
    (graph,) = graphs
    assert copies(graph) == 2


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_models_of_transformers_pay_nothing(attention: str) -> None:
    """They merge the heads right after: no copy is added."""
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(run_passes(module, inputs, Target.CPU).module.graph)
        return module.forward

    model = FAMILIES["llama"].build(attention)
    with torch.no_grad():
        torch.compile(model.forward, backend=backend)(input_ids=ids())
    (graph,) = graphs
    assert copies(graph) == 0
