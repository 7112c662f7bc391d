"""One attention, lowered, in a graph that obeys the rules of the IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph


def lowered(
    function: Callable[..., Any], *inputs: torch.Tensor, target: Target = Target.CPU
) -> tuple[fx.GraphModule, SiteOutcome]:
    ensure_graph_ops()
    module = aten_graph(function, *inputs)
    (outcome,) = lower(module, recognise(module.graph), target)
    verify(module.graph)
    return module, outcome
