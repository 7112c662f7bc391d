"""Lowering a function's graph the way the backend does, and looking at the calls it became."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.mla.lower import MlaLowering
from npu_compile.passes.mla.options import MlaOptions
from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph

FIA = torch.ops.ascend_fia.npu_fused_infer_attention_score
FIA_V2 = torch.ops.ascend_fia.npu_fused_infer_attention_score_v2


def lowered(
    function: Callable[..., Any],
    *tensors: Any,
    target: Target = Target.CPU,
    choice: Any = "auto",
    most: int = MlaOptions.max_context_tokens,
    fusions: Any = MlaOptions.fusions,
) -> tuple[fx.GraphModule, tuple[SiteOutcome, ...]]:
    """The lowered graph, which obeys the rules of the IR, and what became of its sites."""
    ensure_graph_ops()
    module = aten_graph(function, *tensors)
    found = recognise(module.graph)
    specialist = MlaLowering(module.graph, found.around, target, MlaOptions(choice, most, fusions))
    outcomes = lower(module, found, target, specialist)
    verify(module.graph)
    return module, outcomes


def calls(module: fx.GraphModule, packet: Any) -> list[fx.Node]:
    return [n for n in module.graph.nodes if getattr(n.target, "overloadpacket", None) is packet]


def products(module: fx.GraphModule, size: int) -> list[str]:
    """Linear layers and matrix products with an operand that has a dimension of ``size``."""
    aten = torch.ops.aten
    kinds = (aten.linear, aten.matmul, aten.bmm, aten.mm, aten.addmm, aten.einsum)
    found = []
    for node in module.graph.nodes:
        if getattr(node.target, "overloadpacket", None) in kinds:
            operands = [n.meta["val"] for n in node.all_input_nodes]
            if any(size in t.shape for t in operands if isinstance(t, Tensor)):
                found.append(node.name)
    return found


def run(module: fx.GraphModule, *tensors: Any) -> Any:
    with torch.no_grad():
        return module(*tensors)
