"""FlashAttention calls translated and run, and what they compute, by loops in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.flash_calls import translate_flash_calls
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify
from tests.npu_compile.hf.oracle import attend_row
from tests.passes.flash_calls import stand_ins
from tests.passes.graphs import aten_graph, random

ensure_graph_ops()
stand_ins.define()

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 16
Q_LENS, KV_LENS = [4, 1, 17], [7, 3, 17]
CU_Q, CU_K = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 4, 5, 22], [0, 7, 10, 27]))
TABLE = torch.tensor([[4, 1, 6], [2, 0, 3]], dtype=torch.int32)


def translated(
    function: Callable[..., Any], *inputs: Tensor, target: Target = Target.CPU
) -> tuple[fx.GraphModule, tuple[SiteOutcome, ...]]:
    module = aten_graph(function, *inputs)
    outcomes = translate_flash_calls(module, target)
    verify(module.graph)
    return module, outcomes


def oracle(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    before: int | None = None,
    behind: int | None = 0,
    scale: float = DIM**-0.5,
    sinks: Tensor | None = None,
) -> Tensor:
    """(Lq, N, Dv) of one request."""
    shift = len(key) - len(query)
    out = torch.zeros(len(query), query.shape[1], value.shape[-1], dtype=torch.float64)
    for row in range(len(query)):
        first = 0 if before is None else max(0, row + shift - before)
        last = len(key) if behind is None else row + shift + behind + 1
        for head in range(query.shape[1]):
            group = head // (query.shape[1] // key.shape[1])
            sink = None if sinks is None else float(sinks[head])
            seen = slice(first, last)
            out[row, head] = attend_row(query[row, head], key[seen, group], value[seen, group], scale, sink)
    return out


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)


def packed_inputs() -> tuple[Tensor, Tensor, Tensor]:
    return (
        random(sum(Q_LENS), HEADS, DIM),
        random(sum(KV_LENS), KV_HEADS, DIM, seed=1),
        random(sum(KV_LENS), KV_HEADS, 12, seed=2),
    )


def packed_oracle(q: Tensor, k: Tensor, v: Tensor, *band: Any, **options: Any) -> Tensor:
    requests = zip(q.split(Q_LENS), k.split(KV_LENS), v.split(KV_LENS), strict=True)
    return torch.cat([oracle(*request, *band, **options) for request in requests])
