"""Tensors that are only asked for their sizes or dtype are not needed for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.metadata_reads import drop_metadata_reads
from tests.passes.graphs import aten_graph, random, text

Tensor = torch.Tensor

READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "reshape_as": lambda x, measured: x.reshape_as(measured),
    "view_as": lambda x, measured: x.view_as(measured),
    "expand_as": lambda x, measured: x[:1, :1].expand_as(measured),
    "type_as": lambda x, measured: x.type_as(measured),
    "type_as of another dtype": lambda x, measured: x.type_as(measured.double()),
    "zeros_like": lambda x, measured: torch.zeros_like(measured) + x.view(3, 4),
    "ones_like": lambda x, measured: torch.ones_like(measured, dtype=torch.int32) + x.view(3, 4),
    "full_like": lambda x, measured: torch.full_like(measured, -2.5) + x.view(3, 4),
}


@pytest.mark.parametrize("read", READS)
def test_what_is_measured_is_not_computed(read: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return READS[read](x, y.exp())

    inputs = random(4, 3), random(3, 4, seed=1)
    module = aten_graph(function, *inputs)
    wanted = module(*inputs)
    drop_metadata_reads(module.graph)
    remove_dead_code(module.graph)
    module.recompile()
    assert not any("exp." in line or "exp = " in line for line in text(module))
    got = module(*inputs)
    assert got.dtype == wanted.dtype
    assert torch.equal(got, wanted)


def test_strides_that_would_be_copied_stay() -> None:
    """zeros_like keeps a transposed tensor's strides."""

    def function(x: Tensor) -> Tensor:
        return torch.zeros_like(x.exp().t())

    module = aten_graph(function, random(3, 4))
    drop_metadata_reads(module.graph)
    module.recompile()
    assert module(random(3, 4)).stride() == (1, 4)


def test_symbolic_sizes_are_taken_from_the_inputs() -> None:
    """A compiled function of a dynamic length measures its scores: they are not computed for that."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: Tensor) -> Tensor:
        scores = x.exp()
        return x[:, : scores.shape[1]] + scores.shape[1]

    with torch.no_grad():
        module = make_fx(function, pre_dispatch=True, tracing_mode="symbolic")(random(3, 7))
    drop_metadata_reads(module.graph)
    remove_dead_code(module.graph)
    module.recompile()
    assert not any(line.startswith("exp") for line in text(module))
    x = random(3, 5)
    assert torch.equal(module(x), x + 5)
