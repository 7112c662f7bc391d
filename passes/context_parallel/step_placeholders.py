"""A prefill step's metadata as inputs of the graph.

They come after the graph's own inputs. Their sizes and the two integers change from step to step
and nothing may depend on their first values, so they are unbacked symbols to the tracer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from npu_compile.passes.emit_node import fake_mode_of

from .config import NAMES, StepInputs

PREFIX = "context_parallel_"


def add_step_placeholders(graph: fx.Graph, steps: StepInputs) -> list[fx.Node]:
    """Append one placeholder per value of ``steps`` and return them in order of ``NAMES``."""
    mode = fake_mode_of(graph)
    assert mode is not None, "a graph with an attention call has fake values"
    sizes = _Sizes(mode)
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    placeholders: list[fx.Node] = []
    for name, value in zip(NAMES, steps.values(), strict=True):
        with graph.inserting_after(last):
            last = graph.placeholder(PREFIX + name)
        last.meta["val"] = sizes.fake(name, value)
        placeholders.append(last)
    return placeholders


class _Sizes:
    """Fakes for the values; tensors with one entry per sequence share the symbol of their size."""

    def __init__(self, mode: FakeTensorMode) -> None:
        if mode.shape_env is None:
            mode.shape_env = ShapeEnv()
            mode.static_shapes = False
        self._mode = mode
        self._symbols: dict[str, Any] = {}

    def fake(self, name: str, value: Any) -> Any:
        if isinstance(value, int):
            return self._symbol(name)
        size = self._symbol(name if name.startswith("kv_rows") else "sequences")
        with self._mode:
            return torch.empty((size,), dtype=value.dtype, device=value.device)

    def _symbol(self, name: str) -> Any:
        if name not in self._symbols:
            shape_env = self._mode.shape_env
            assert shape_env is not None
            # No operator made this symbol, so there is no node for the tracer to bind it to.
            with shape_env.ignore_fresh_unbacked_symbols():
                symbol = shape_env.create_unbacked_symint()
            torch._check(symbol >= 1)
            self._symbols[name] = symbol
        return self._symbols[name]
