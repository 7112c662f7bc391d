"""One scenario on the CPU simulation and on torch_npu's NPUGraph: records, keys, values and errors agree."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.runtime.cpu_graph import CpuGraphRuntime
from npu_compile.runtime.errors import CaptureError
from npu_compile.runtime.interface import CapturedGraph, GraphRuntime
from npu_compile.runtime.npu_graph import NpuGraphRuntime
from npu_compile.runtime.split import split
from tests.npu_compile.runtime.decode_graphs import fia, fia_v2, host_lengths, lowered

RUNTIMES: dict[str, Callable[[], GraphRuntime]] = {"cpu": CpuGraphRuntime, "npu": NpuGraphRuntime}
V1, V2 = "actual_seq_lengths_kv", "actual_seq_kvlen"


def mixed(q: Tensor, kv: Tensor, whole: Tensor, window: Tensor) -> Tensor:
    """A v1 call, a v2 call with other lengths, and a v1 call without any."""
    full, near = host_lengths(whole), host_lengths(window)
    return fia(fia_v2(fia(q, kv, kv, full), kv, kv, near), kv, kv, None)


def arguments(device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, kv = (torch.randn(2, n, s, 16, generator=generator).bfloat16() for n, s in ((4, 1), (2, 37)))
    return [x.to(device) for x in (q, kv, torch.tensor([30, 9]), torch.tensor([17, 9]))]


def act(log: list[Any], graph: CapturedGraph, action: Callable[[], None]) -> None:
    """Note what an action raised, and the records and results it left."""
    try:
        action()
    except (ValueError, RuntimeError) as error:
        log.append((type(error).__name__, str(error)))
    log.append([(record.op, record.lengths) for record in graph.records])
    log.append([output.float().cpu() for output in graph.outputs])


def scenario(device: str) -> list[Any]:
    args = arguments(device)
    parts = split(lowered(mixed, args))
    graph = RUNTIMES[device]().capture(parts, args, parts.plan.resolve([[30, 9], [17, 9]]))
    log: list[Any] = []
    per_record = [{V1: [1, 2]}, {V2: [3, 4]}, {}]
    for action in (
        lambda: None,
        graph.replay,
        lambda: graph.update(per_record),
        graph.replay,
        graph.replay,
        lambda: graph.update(parts.plan.updates([[37, 5], [17, 5]])),
        lambda: graph.update([{V1: [1, 2]}]),
        lambda: graph.update(per_record[:2]),
        lambda: graph.update([{V2: [1, 2]}, {V2: [3, 4]}, {}]),
        lambda: graph.update([{V1: [1, 2, 3]}, {V2: [3, 4]}, {}]),
        graph.replay,
        graph.reset,
        graph.replay,
    ):
        act(log, graph, action)
    return log


def test_the_simulation_is_as_the_real_code() -> None:
    simulated, real = scenario("cpu"), scenario("npu")
    assert len(simulated) == len(real)
    for mine, theirs in zip(simulated, real, strict=True):
        if isinstance(mine, list) and mine and isinstance(mine[0], Tensor):
            torch.testing.assert_close(mine, theirs, atol=2e-2, rtol=2e-2, equal_nan=True)
        else:
            assert mine == theirs
    assert [entry[0] for entry in simulated if isinstance(entry, tuple)] == [
        "ReplayError", "ReplayError", *["UpdateError"] * 4, "ReplayError",
    ]  # fmt: skip


def test_torch_npu_holds_what_the_records_say() -> None:
    args = arguments("npu")
    parts = split(lowered(mixed, args))
    graph = NpuGraphRuntime().capture(parts, args, parts.plan.resolve([[30, 9], [17, 9]]))
    graph.update([{V1: [1, 2]}, {V2: [3, 4]}, {}])
    held = graph._graph.graph_dispatch_mode.graph_dispatch_records
    lengths = [{k: v for k, v in record.kwargs.items() if k.startswith("actual_seq")} for record in held]
    assert lengths == [{V1: [1, 2]}, {V2: [3, 4]}, {}]
    assert [record.op_cache_entry.__name__ for record in held] == [
        "npu_fused_infer_attention_score.out",
        "npu_fused_infer_attention_score_v2.out",
        "npu_fused_infer_attention_score.out",
    ]


def test_torch_npu_takes_the_plan() -> None:
    from torch_npu.npu import _aclgraph_update_plan as vendor

    def step(q: Tensor, kv: Tensor, whole: Tensor, window: Tensor) -> Tensor:
        return fia_v2(fia(q, kv, kv, host_lengths(whole)), kv, kv, host_lengths(window))

    args = arguments("npu")
    parts = split(lowered(step, args))
    graph = NpuGraphRuntime().capture(parts, args, parts.plan.resolve([[30, 9], [17, 9]]))
    held = graph._graph.graph_dispatch_mode.graph_dispatch_records
    vendor.validate_aclgraph_update_plan(parts.plan.as_torch_npu(), held)
    lengths = [[37, 1], [2, 3]]
    assert vendor.resolve_aclgraph_update_plan(parts.plan.as_torch_npu(), lengths) == parts.plan.resolve(
        lengths
    )


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * x.sum().item(), id="item"),
        pytest.param(lambda x: torch.nonzero(x).float(), id="nonzero"),
        pytest.param(lambda x: x[x > 0], id="mask"),
    ],
)
def test_both_refuse_what_needs_the_host(function: Callable[[Tensor], Tensor]) -> None:
    nodes = []
    for device in RUNTIMES:
        x = torch.rand(3, 5).to(device)
        parts = split(make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(x))
        with pytest.raises(CaptureError) as caught:
            RUNTIMES[device]().capture(parts, [x], [])
        nodes.append(caught.value.node)
    assert nodes[0] == nodes[1] != ""
