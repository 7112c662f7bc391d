"""Functions of single elements over whole index ranges, against a loop over the elements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.flex.scalar_program import NotScalar, Spread, returned
from tests.passes.graphs import random

SIZES = (2, 3, 5)
TABLE = random(*SIZES)
COUNTS = torch.tensor([[3, -1, 2], [0, 4, 1]])
STEP = torch.tensor(2)
HALF = torch.tensor(0.5, dtype=torch.float64)


def spread_out(function: Callable[..., Any], *captured: Tensor) -> Tensor:
    """``function`` of three indices and ``captured`` over all of ``SIZES``."""
    elements = [torch.tensor(0) for _ in SIZES]
    program = make_fx(function, pre_dispatch=True, tracing_mode="fake")(*elements, *captured)
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("x", "y", "z", *(f"c{i}" for i in range(len(captured))))]

    def emit(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return graph.call_function(target, args, kwargs)

    graph.output(Spread(program.graph, inputs[:3], inputs[3:], emit).of(returned(program.graph)))
    indices = [torch.arange(n).view([-1] + [1] * (2 - axis)) for axis, n in enumerate(SIZES)]
    return fx.Interpreter(fx.GraphModule({}, graph)).run(*indices, *captured)


def looped(function: Callable[..., Any], *captured: Tensor) -> Tensor:
    places = itertools.product(*map(range, SIZES))
    elements = [function(*map(torch.tensor, place), *captured) for place in places]
    return torch.stack(elements).view(SIZES)


index = torch.ops.aten.index.Tensor

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "comparisons": (lambda x, y, z: (x <= y) & (z // 2 == y) | ~(x != z), ()),
    "one element": (lambda x, y, z, t: index(t, [x, y, z]) + x, (TABLE,)),
    "bit by bit": (lambda x, y, z, t: index(index(index(t, [x]), [z % 3]), [y]), (TABLE,)),
    "element of an element": (lambda x, y, z, t, c: index(t, [x, y, index(c, [x, y])]), (TABLE, COUNTS)),
    "captured 0-d": (lambda x, y, z, s: (z >= x + s) & (y < s), (STEP,)),
    "created": (lambda x, y, z: x.new_ones((), dtype=torch.bool) & (y > z), ()),
    "promoted": (lambda x, y, z, t, s: index(t, [x, y, z]) * s, (TABLE, HALF)),
    "selected": (lambda x, y, z, t: torch.where(z <= y, index(t, [x, y, z]), -1.0), (TABLE,)),
    "a constant": (lambda x, y, z: (z - x).clamp(min=0).float(), ()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function, captured = FUNCTIONS[name]
    expected, got = looped(function, *captured), spread_out(function, *captured)
    assert got.dtype == expected.dtype
    assert torch.equal(got.expand(SIZES), expected)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "a sum": (lambda x, y, z, t: t.sum() + x, (TABLE,), "as a whole"),
    "a sum of one": (lambda x, y, z: (x + y).sum(), (), "sum"),
    "a row": (lambda x, y, z, t: index(t, [x]).amax() + y, (TABLE,), "as a whole"),
    "a write": (lambda x, y, z, s: s.add_(1) + x + y + z, (STEP.clone(),), "writes"),
    "random": (lambda x, y, z: torch.rand(()) + x + y + z, (), "random"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    function, captured, words = REFUSED[name]
    with pytest.raises(NotScalar, match=words):
        spread_out(function, *captured)
