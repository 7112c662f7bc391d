"""A prefill step's metadata as inputs of the graph.

They come after the graph's own inputs. Their sizes and the two integers change from step to step
and nothing may depend on their first values, so they are unbacked symbols to the tracer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npu_compile.passes.emit_node import call, fake_mode_of

from .config import StepInputs

PREFIX = "context_parallel_"


@dataclass(frozen=True)
class StepNodes:
    """``placeholders`` are what the graph is given, in order of ``steps.named()``.

    ``values`` are what calls read of them, ``sizes`` what the symbols stand for in the loaded step.
    """

    placeholders: tuple[fx.Node, ...] = ()
    values: tuple[fx.Node, ...] = ()
    sizes: Mapping[Any, sympy.Integer] = field(default_factory=dict)


def add_step_placeholders(graph: fx.Graph, steps: StepInputs) -> StepNodes:
    """Append one placeholder per value of ``steps``; lengths are read through ``host_lengths``."""
    mode = fake_mode_of(graph)
    assert mode is not None, "a graph with an attention call has fake values"
    sizes = _Sizes(mode)
    last = graph.find_nodes(op="placeholder")[-1]
    placeholders: list[fx.Node] = []
    for name, value in steps.named().items():
        with graph.inserting_after(last):
            last = graph.placeholder(PREFIX + name)
        last.meta["val"] = sizes.fake(name, value)
        placeholders.append(last)
    values = []
    for name, node in zip(steps.named(), placeholders, strict=True):
        if "lengths" in name:
            with graph.inserting_after(last):
                node = last = call(graph, torch.ops.ascend_fia.host_lengths.default, node)
        values.append(node)
    return StepNodes(tuple(placeholders), tuple(values), sizes.known)


class _Sizes:
    """Fakes for the values; tensors with one entry per sequence share the symbol of their size."""

    def __init__(self, mode: FakeTensorMode) -> None:
        if mode.shape_env is None:
            mode.shape_env = ShapeEnv()
            mode.static_shapes = False
        self._mode = mode
        self._symbols: dict[str, Any] = {}
        self.known: dict[Any, sympy.Integer] = {}

    def fake(self, name: str, value: Any) -> Any:
        if isinstance(value, int):
            return self._symbol(name, value)
        names = [name if name.startswith("kv_rows") else "sequences", "blocks of a sequence"]
        sizes = [self._symbol(*known) for known in zip(names, value.shape, strict=False)]
        with self._mode:
            return torch.empty(sizes, dtype=value.dtype, device=value.device)

    def _symbol(self, name: str, value: int) -> Any:
        if name not in self._symbols:
            shape_env = self._mode.shape_env
            assert shape_env is not None
            # No operator made this symbol, so there is no node for the tracer to bind it to.
            with shape_env.ignore_fresh_unbacked_symbols():
                symbol = shape_env.create_unbacked_symint()
            torch._check(symbol >= 1)
            self._symbols[name] = symbol
            self.known[symbol.node.expr] = sympy.Integer(value)
        return self._symbols[name]
