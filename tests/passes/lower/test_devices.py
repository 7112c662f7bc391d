"""What lowering for a device adds to lowering for the CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph, random, text

Tensor = torch.Tensor


def two_layers(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    q = F.scaled_dot_product_attention(q, k, v, mask)
    return F.scaled_dot_product_attention(q, k, v, mask)


def test_layers_share_one_contiguous_mask_with_row_correction() -> None:
    ensure_graph_ops()
    q, k, v = (random(2, 4, s, 64, dtype=torch.bfloat16) for s in (5, 17, 17))
    mask = torch.ones(2, 1, 1, 17, dtype=torch.bool)
    module = aten_graph(two_layers, q, k, v, mask)
    outcomes = lower(module, recognise(module.graph), Target.ASCEND910B)
    verify(module.graph)
    assert all(outcome.lowered for outcome in outcomes)
    calls = [n for n in module.graph.nodes if "fused_infer" in str(n.target)]
    first, second = (n.kwargs["atten_mask"] for n in calls)
    assert first is second
    assert first.meta["val"].is_contiguous()
    assert [n.kwargs["inner_precise"] for n in calls] == [2, 2]
    assert sum(line.startswith("contiguous") for line in text(module)) == 1
