"""NPUGraph of the real torch_npu: what the runtime relies on, and what it protects from."""

import pytest
import torch
from torch import Tensor

from npu_compile.runtime import capture
from npu_compile.runtime.errors import CaptureError, ReplayError, UpdateError
from npu_compile.runtime.npu_graph import NpuGraphRuntime
from npu_compile.runtime.split import split
from tests.npu_compile.runtime.decode_graphs import fia, fresh_state, host_lengths, lowered, step_inputs
from tests.softnpu import softnpu
from tests.softnpu.steps import assert_steps, npu_decode_graph, to_npu

KEY = "actual_seq_lengths_kv"


def raw_capture(lengths: list[int] | None) -> tuple[torch.npu.NPUGraph, Tensor, Tensor]:
    """torch_npu's own capture of one FIA call: the graph, its output, and values (B, 2, T, D) it averages."""
    q = torch.zeros(2, 4, 1, 16, dtype=torch.bfloat16, device="npu")
    v = torch.arange(8.0, device="npu").bfloat16()[None, None, :, None].expand(2, 2, 8, 16).contiguous()
    keywords = {} if lengths is None else {KEY: lengths}
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, auto_dispatch_capture=True):
        output = torch.ops.npu.npu_fused_infer_attention_score(
            q, v, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD", **keywords
        )[0]
    graph.kept = (q, v)  # records hold weak references only
    return graph, output, v


def averages(output: Tensor) -> list[float]:
    """Zero queries weigh all keys alike: a request of n keys gives the mean of 0..n-1."""
    return output[:, 0, 0, 0].tolist()


def test_capture_runs_nothing() -> None:
    _, output, _ = raw_capture([3, 5])
    assert output.isnan().all().item()


def test_update_then_replay() -> None:
    graph, output, _ = raw_capture([3, 5])
    for lengths in ([3, 5], [8, 2], [1, 7]):
        graph.update([{KEY: lengths}])
        graph.replay()
        assert averages(output) == [(n - 1) / 2 for n in lengths]


@pytest.mark.parametrize("update", [{"actual_seq_kvlen": [8, 2]}, {"nonsense": 1}, {}])
def test_torch_npu_ignores_keys_it_does_not_know(update: dict) -> None:
    graph, output, _ = raw_capture([3, 5])
    graph.update([update])
    graph.replay()
    assert averages(output) == [1.0, 2.0], "the lengths of the capture"


def test_torch_npu_ignores_keys_that_were_not_captured() -> None:
    graph, output, _ = raw_capture(None)
    graph.update([{KEY: [2, 2]}])
    graph.replay()
    assert averages(output) == [3.5, 3.5]


def test_a_replay_without_update_never_finishes() -> None:
    graph, _, _ = raw_capture([3, 5])
    graph.replay()
    with pytest.raises(RuntimeError, match="107020"):
        torch.npu.synchronize()


def test_without_value_waits_it_uses_the_old_lengths() -> None:
    graph, output, _ = raw_capture([3, 5])
    with softnpu.strict_waits(False):
        graph.replay()
        assert averages(output) == [1.0, 2.0]


# The runtime on top of it ----------------------------------------------------------------------------------


def captured(layers: int = 2):
    args = to_npu([*step_inputs(0), *fresh_state(layers)])
    parts = split(npu_decode_graph(layers))
    return NpuGraphRuntime().capture(parts, args, parts.plan.resolve([[1, 1]])), args


def test_steps() -> None:
    graph, args = captured()
    outputs = []
    for step in range(6):
        for arg, new in zip(args, to_npu(step_inputs(step)), strict=False):
            arg.copy_(new)
        graph.update([{KEY: [step + 1] * 2}])
        graph.replay()
        outputs.append(graph.outputs[0].clone())
    assert_steps(outputs, 2)


@pytest.mark.parametrize("update", [{"actual_seq_kvlen": [1, 1]}, {}, {KEY: [1, 1], "scale": 0.0}])
def test_the_runtime_refuses_what_torch_npu_ignores(update: dict) -> None:
    graph, _ = captured()
    with pytest.raises(UpdateError, match="keys"):
        graph.update([update])


def test_the_runtime_refuses_a_replay_that_would_block() -> None:
    graph, _ = captured()
    with pytest.raises(ReplayError, match="block for ever"):
        graph.replay()


def test_external_tensors_are_kept_alive() -> None:
    graph, args = captured(1)
    v, weight = args[2].clone(), args[3].clone()
    pointers = [args[4].data_ptr(), args[5].data_ptr()]
    del args
    taken = [torch.zeros(2, 2, 37, 16, dtype=torch.bfloat16, device="npu") for _ in range(20)]
    assert not {x.data_ptr() for x in taken} & set(pointers)
    graph.update([{KEY: [1, 1]}])
    graph.replay()
    want = (v * weight).repeat_interleave(2, 1)
    torch.testing.assert_close(graph.outputs[0].cpu(), want.cpu(), atol=2e-2, rtol=2e-2)


def test_a_failed_capture_is_cleaned_up() -> None:
    def step(q: Tensor, kv: Tensor, n: Tensor) -> Tensor:
        return fia(q, kv, kv, host_lengths(n)).cpu() * 2

    args = to_npu([torch.randn(2, 4, 1, 16), torch.randn(2, 2, 9, 16), torch.tensor([3, 7])])
    parts = split(lowered(step, args))
    stream = torch.npu.current_stream()
    with pytest.raises(CaptureError) as caught:
        NpuGraphRuntime().capture(parts, args, parts.plan.resolve([[3, 7]]))
    assert caught.value.node == "to"
    assert "captured" in caught.value.reason
    assert torch.npu.current_stream() == stream
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.ones(3, device="npu").sum().item() == 3, "the device works as before"
    captured(1)


def test_calls_by_hand_are_updated_too() -> None:
    """A model may call FIA itself, with lists: its record waits as any other, and keeps its lengths."""

    def by_hand(q: Tensor, kv: Tensor) -> Tensor:
        operator = torch.ops.npu.npu_fused_infer_attention_score
        heads = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD"}
        return operator(q, kv, kv, actual_seq_lengths_kv=[3, 7], **heads)[0]

    def alone(q: Tensor, kv: Tensor, n: Tensor) -> tuple[Tensor]:
        return (by_hand(q, kv),)

    def between(q: Tensor, kv: Tensor, n: Tensor) -> tuple[Tensor]:
        known = host_lengths(n)
        return (fia(by_hand(fia(q, kv, kv, known), kv), kv, kv, known),)

    for step in (alone, between):
        args = to_npu([torch.randn(2, 4, 1, 16), torch.randn(2, 2, 9, 16), torch.tensor([3, 7])])
        function = capture(lowered(step, args))
        for count in range(1, 6):
            args[2] = torch.tensor([count, 9 - count], device="npu")
            with torch.no_grad():
                torch.testing.assert_close(function(*args)[0].cpu(), step(*args)[0].cpu())
        assert function.stats.updates == function.stats.replays == 4
        assert {} in [record.lengths for record in function.graphs[0].records]


def test_inputs_on_another_device_run_uncaptured(monkeypatch: pytest.MonkeyPatch) -> None:
    args = to_npu([torch.randn(5)])
    function = capture(lowered(lambda x: (x * 2,), args))
    monkeypatch.setattr(torch.npu, "current_device", lambda: 1)
    function(*args)
    (reason,) = function.stats.fallbacks
    assert "inputs are on npu:0, the current device is npu:1; call torch.npu.set_device(0)" in reason
