"""Normalising dynamo's graph: attention whole, writes in place, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from npu_compile.passes.normalise import NormaliseError, normalise
from npu_compile.passes.recognise.where_from import module_path, source
from npu_compile.passes.values import is_call
from npu_compile.passes.verify import verify
from tests.passes.graphs import random, text

aten = torch.ops.aten


@pytest.fixture
def run() -> Callable[..., Any]:
    """Compiles and runs a function through normalise alone; ``run.seen`` holds the graphs."""
    torch._dynamo.reset()

    def compile_and_run(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Any:
        def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            done = normalise(module, example_inputs)
            verify(done.graph)
            compile_and_run.seen.append(done)
            return done.forward

        compile_and_run.seen = []
        with torch.no_grad():
            return torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)

    return compile_and_run


def targets(done: fx.GraphModule) -> list[Any]:
    return [n.target for n in done.graph.nodes if n.op == "call_function"]


def test_attention_stays_whole(run: Any) -> None:
    q = random(1, 2, 5, 16)
    run(lambda q: F.scaled_dot_product_attention(q, q, q), q)
    assert aten.scaled_dot_product_attention.default in targets(run.seen[0])


def test_cache_write_stays_in_place(run: Any) -> None:
    def step(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache.sum(1)

    cache, new = torch.zeros(2, 7), random(2, 1)
    result = run(step, cache, new, torch.tensor([3]))
    assert torch.equal(cache[:, 3:4], new)
    assert torch.equal(result, new[:, 0])
    (write,) = [n for n in run.seen[0].graph.nodes if is_call(n, aten.index_copy_)]
    assert write.args[0].op == "placeholder"
    assert not any(t is aten.clone.default for t in targets(run.seen[0]))


def test_text_before_and_after(run: Any) -> None:
    run(lambda x, w: F.softmax(F.linear(x, w), -1, dtype=torch.float32), random(3, 4), random(5, 4))
    assert text(run.seen[0]) == [
        "linear = linear.default(x, w)",
        "softmax = softmax.int(linear, -1, torch.float32)",
    ]


class Activation(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def test_module_and_source_survive(run: Any) -> None:
    run(torch.nn.Sequential(torch.nn.Linear(4, 4), Activation()), random(3, 4))
    (relu,) = [n for n in run.seen[0].graph.nodes if is_call(n, aten.relu)]
    assert module_path(relu) == "1"
    assert source(relu).startswith("passes/test_normalise.py:")


def test_symbolic_sizes_stay_symbolic(run: Any) -> None:
    run(lambda x: x * 2, random(5, 3), dynamic=True)
    sizes = next(n.meta["val"].shape for n in run.seen[0].graph.nodes if is_call(n, aten.mul))
    assert isinstance(sizes[0], torch.SymInt)


def test_constants_keep_their_values(run: Any) -> None:
    result = run(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), torch.zeros(2, 3))
    assert torch.equal(result, torch.tensor([[1.0, 2.0, 3.0]] * 2))


def test_autocast_regions_are_kept(run: Any) -> None:
    x, w = random(3, 17), random(5, 17, seed=1)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x, w)

    with torch.no_grad():
        expected = step(x, w)
    result = run(step, x, w)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)


def test_values_have_the_dtypes_of_their_autocast_region(run: Any) -> None:
    """Also where regions are nested and switch autocast off, as rotary embeddings do."""

    def step(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            inside = F.linear(x, w)
            with torch.autocast("cpu", enabled=False):
                off = F.linear(x, w)
            again = F.linear(x, w)
        return inside, off, again, F.linear(x, w)

    run(step, random(3, 17), random(5, 17, seed=1))
    (module,) = run.seen
    dtypes = [node.meta["val"].dtype for node in module.graph.nodes if node.target is aten.linear.default]
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
    assert not torch.is_autocast_enabled("cpu")


def test_an_untraceable_operation_is_named() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.Tensor.item, (x,)))
    with pytest.raises(NormaliseError, match="item"):
        normalise(fx.GraphModule(torch.nn.Module(), graph), [torch.ones(1)])
