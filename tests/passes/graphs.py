"""Small ATen graphs made from plain functions, as the passes see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def aten_graph(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    """``function`` traced on ``inputs`` the way ``normalise`` traces dynamo's graphs."""
    with torch.no_grad():
        return make_fx(function, pre_dispatch=True, tracing_mode="fake")(*inputs)


def text(module: fx.GraphModule) -> list[str]:
    """The graph as one short line a call: ``name = operator(arguments)``."""
    lines = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            name = str(getattr(node.target, "__name__", node.target))
            arguments = [str(a) for a in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
            lines.append(f"{node.name} = {name}({', '.join(arguments)})")
    return lines


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
