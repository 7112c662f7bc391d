"""Numbers that are known when compiling, in the spellings that programs have for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from npu_compile.passes.constant import constant, number_in, written_down
from npu_compile.passes.flex.scalar_program import returned
from tests.passes.graphs import aten_graph, random

X = random(3, 5)

NUMBERS: dict[str, tuple[Callable[[Tensor], Any], float]] = {
    "filled": (lambda x: torch.full((), 1.5), 1.5),
    "filled like": (lambda x: torch.full_like(x, -2.5), -2.5),
    "filled anew": (lambda x: x.new_full((5,), 0.25), 0.25),
    "no dimensions": (lambda x: torch.ops.aten.scalar_tensor(7.0), 7.0),
    "zeros": (lambda x: torch.zeros_like(x), 0.0),
    "ones": (lambda x: x.new_ones(3, 5), 1.0),
    "cast and copied": (lambda x: torch.full((1,), 1.5).clone().double().detach(), 1.5),
    "expanded": (lambda x: torch.full((), 1.5).expand(3, 5), 1.5),
    "written down": (lambda x: torch.tensor(-float("inf")), -float("inf")),
    "rounded by bfloat16": (lambda x: torch.full((), 0.1, dtype=torch.bfloat16), 0.10009765625),
    "rounded by a cast": (lambda x: torch.full((), 0.1).double().half(), 0.0999755859375),
    "too large for half": (lambda x: torch.full((), -1e9).half(), -float("inf")),
    "cut off by a cast": (lambda x: torch.full((3,), 2.75).long(), 2.0),
    "an integer": (lambda x: torch.tensor([17]), 17.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    function, expected = NUMBERS[name]
    assert constant(returned(aten_graph(function, X).graph)) == expected


def _written(x: Tensor) -> Tensor:
    made = torch.ones(5)
    made[2:] = 0
    return made


UNKNOWN: dict[str, Callable[[Tensor], Any]] = {
    "an input": lambda x: x,
    "computed": lambda x: x.sum(),
    "several": lambda x: torch.tensor([1.0, 2.0]),
    "minus infinity among integers": lambda x: torch.full((), -float("inf")).long(),
    "bools": lambda x: torch.ones(3, dtype=torch.bool),
    "a bool": lambda x: torch.tensor(True),
    "complex": lambda x: torch.tensor(1j),
    "written to": _written,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_numbers(name: str) -> None:
    assert constant(returned(aten_graph(UNKNOWN[name], X).graph)) is None


def test_python_numbers() -> None:
    assert (constant(17), constant(0.5), constant(None), constant("a")) == (17.0, 0.5, None, None)
    assert constant(True) is None, "a condition is no number of scores"


def test_a_tensor_held_while_values_are_fake() -> None:
    """As in the mods of flex_attention, whose constants are fake tensors that remember what they were."""
    mode, module = FakeTensorMode(), torch.nn.Module()
    with mode:
        module.register_buffer("known", torch.tensor(0.5))
        module.register_buffer("unknown", torch.empty(()))
    graph = fx.Graph(module)
    known, unknown = (graph.get_attr(name) for name in ("known", "unknown"))
    assert isinstance(module.known, FakeTensor)
    with mode:
        assert (constant(known), constant(unknown)) == (0.5, None)
        assert number_in(written_down(known)) == 0.5
    assert written_down(unknown) is None and written_down(0.5) is None


def test_a_buffer_that_the_program_reads_as_it_is_can_change() -> None:
    module = torch.nn.Module()
    module.register_buffer("scale", torch.tensor(0.5))
    graph = fx.Graph(module)
    scale = graph.get_attr("scale")
    graph.call_function(torch.ops.aten.mul.Tensor, (scale, scale))
    assert written_down(scale) is None and constant(scale) is None
