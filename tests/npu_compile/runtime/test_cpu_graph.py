"""The CPU simulation of NPUGraph: its records, refusals and traps."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npu_compile.runtime.cpu_graph import CpuGraph, CpuGraphRuntime
from npu_compile.runtime.errors import CaptureError, ReplayError, UpdateError
from npu_compile.runtime.split import split
from tests.npu_compile.runtime.decode_graphs import (
    CAPACITY,
    N_KV,
    B,
    D,
    N,
    decode_graph,
    expected_decode,
    fia,
    fia_v2,
    fresh_state,
    host_lengths,
    lowered,
    step_inputs,
)


def captured(args: list[Tensor], layers: int = 2, value_wait: bool = True) -> CpuGraph:
    parts = split(decode_graph(layers))
    return CpuGraphRuntime(value_wait).capture(parts, args, parts.plan.resolve([[1, 1]]))


def lengths(*values: int) -> list[dict[str, list[int]]]:
    return [{"actual_seq_lengths_kv": list(values)}]


def test_capture_runs_nothing() -> None:
    args = [*step_inputs(0), *fresh_state(2)]
    graph = captured(args)
    assert args[6].item() == 0
    assert args[4].isnan().all()
    assert graph.outputs[0].isnan().all(), "results are undefined before the first replay"


def test_replay_after_replay() -> None:
    args = [*step_inputs(0), *fresh_state(2)]
    graph = captured(args)
    result = graph.outputs[0]
    for step, expected in enumerate(expected_decode(2, 5)):
        for arg, new in zip(args, step_inputs(step), strict=False):
            arg.copy_(new)
        graph.update(lengths(step + 1, step + 1))
        graph.replay()
        torch.testing.assert_close(graph.outputs[0].double(), expected, atol=1e-5, rtol=0)
    assert graph.outputs[0] is result, "a replay overwrites the results of the last"


def test_replay_without_update_would_block() -> None:
    graph = captured([*step_inputs(0), *fresh_state(2)])
    with pytest.raises(ReplayError, match="block for ever"):
        graph.replay()
    graph.update(lengths(1, 1))
    graph.replay()
    with pytest.raises(ReplayError, match="block for ever"):
        graph.replay()


def test_replay_without_update_uses_the_old_lengths_where_there_are_no_value_waits() -> None:
    args = [*step_inputs(0), *fresh_state(1)]
    graph = captured(args, layers=1, value_wait=False)
    for step in (0, 1):
        for arg, new in zip(args, step_inputs(step), strict=False):
            arg.copy_(new)
        graph.replay()  # the lengths of the capture: 1
    stale = graph.outputs[0].double()
    assert not torch.allclose(stale, expected_decode(1, 2)[1], atol=1e-3)
    v = step_inputs(0)[2].double() * fresh_state(1)[0]
    torch.testing.assert_close(stale, v.repeat_interleave(N // N_KV, 1), atol=1e-5, rtol=0)


def test_a_replay_reads_the_addresses_of_the_capture() -> None:
    args = [*step_inputs(0), *fresh_state(1)]
    graph = captured(args, layers=1)
    weight = args[3]
    captured_memory = weight.detach()
    weight.data = torch.zeros(D)  # the owner's tensor is elsewhere now; the graph doesn't notice
    graph.update(lengths(1, 1))
    graph.replay()
    v = args[2] * captured_memory
    torch.testing.assert_close(graph.outputs[0], v.repeat_interleave(N // N_KV, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (
            [{"actual_seq_kvlen": [1, 1]}],
            r"keys \['actual_seq_kvlen'\]; .* takes \['actual_seq_lengths_kv'\]",
        ),
        ([{}], r"keys \[\]"),
        ([{"actual_seq_lengths_kv": [1, 1], "scale": 0.0}], r"'scale'"),
        ([], "0 updates were given for 2 records"),
        (lengths(1, 1) * 3, "3 updates were given for 2 records"),
        (lengths(1), "list of 2 ints"),
        ([{"actual_seq_lengths_kv": torch.tensor([1, 1])}], "list of 2 ints"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(updates: list, message: str) -> None:
    graph = captured([*step_inputs(0), *fresh_state(2)])
    graph.update(lengths(3, 4))
    with pytest.raises(UpdateError, match=message):
        graph.update(updates)
    assert [record.lengths for record in graph.records] == lengths(3, 4) * 2, "nothing has changed"


def test_a_wrong_key_in_one_of_several_updates_is_found() -> None:
    def step(q: Tensor, kv: Tensor, n: Tensor) -> Tensor:
        known = host_lengths(n)
        return fia_v2(fia(q, kv, kv, known), kv, kv, known)

    args = [torch.zeros(B, N, 1, D), torch.zeros(B, N_KV, CAPACITY, D), torch.tensor([1, 2])]
    parts = split(lowered(step, args))
    graph = CpuGraphRuntime().capture(parts, args, parts.plan.resolve([[1, 2]]))
    assert [record.op for record in graph.records] == [
        "npu_fused_infer_attention_score",
        "npu_fused_infer_attention_score_v2",
    ]
    with pytest.raises(UpdateError, match=r"record 1 has the keys \['actual_seq_lengths_kv'\]"):
        graph.update(lengths(1, 2))
    with pytest.raises(UpdateError, match=r"record 0 has the keys \['actual_seq_kvlen'\]"):
        graph.update([{"actual_seq_kvlen": [1, 2]}, {"actual_seq_lengths_kv": [1, 2]}])


def reads_a_value(x: Tensor) -> Tensor:
    return x * x.sum().item()


def has_a_shape_that_depends_on_data(x: Tensor) -> Tensor:
    return torch.nonzero(x).float()


def selects_by_a_mask(x: Tensor) -> Tensor:
    return x[x > 0]


@pytest.mark.parametrize(
    ("function", "node"),
    [(reads_a_value, "item"), (has_a_shape_that_depends_on_data, "nonzero"), (selects_by_a_mask, "index")],
)
def test_capture_refuses_what_needs_the_host(function: Callable[[Tensor], Tensor], node: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.rand(3, 5)
    parts = split(make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(x))
    with pytest.raises(CaptureError, match=f"node {node}"):
        CpuGraphRuntime().capture(parts, [x], [])


def test_reset() -> None:
    graph = captured([*step_inputs(0), *fresh_state(2)])
    graph.reset()
    assert graph.outputs == ()
    with pytest.raises(ReplayError, match="reset"):
        graph.replay()
