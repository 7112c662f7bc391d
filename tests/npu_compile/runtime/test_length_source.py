"""Where a step's lengths come from, and what they cost: reads of the device are counted."""

import pytest
import torch
from torch import Tensor

from npu_compile.runtime import CapturedCallable, CaptureOptions, capture
from npu_compile.runtime.length_source import LengthSource
from npu_compile.runtime.split import split
from npu_compile.runtime.stats import CaptureStats
from tests.npu_compile.runtime.decode_graphs import (
    CAPACITY,
    N_KV,
    B,
    D,
    N,
    decode_graph,
    expected_decode,
    fia,
    fresh_state,
    host_lengths,
    lowered,
    step_inputs,
)

COUNTER = 6
"""Position of the first layer's counter among the inputs of a decode graph."""


def run(function: CapturedCallable, state: list[Tensor], steps: range) -> list[Tensor]:
    return [function(*step_inputs(step), *state)[0] for step in steps]


def assert_steps(outputs: list[Tensor], steps: range, layers: int = 2) -> None:
    expected = expected_decode(layers, steps.stop)
    for step, output in zip(steps, outputs, strict=True):
        torch.testing.assert_close(output.double(), expected[step], atol=1e-5, rtol=0)


def test_a_counter_that_only_the_graph_advances_is_read_once() -> None:
    function, state = capture(decode_graph()), fresh_state(2)
    assert_steps(run(function, state, range(20)), range(20))
    assert function.stats.host_reads == 1
    assert function.stats.updates == function.stats.replays == 19


def test_without_mirrors_there_is_one_read_a_step() -> None:
    function = capture(decode_graph(), CaptureOptions(mirror_counters=False))
    assert_steps(run(function, fresh_state(2), range(7)), range(7))
    assert function.stats.host_reads == 7


def test_a_counter_written_outside_is_read_again() -> None:
    function, state = capture(decode_graph()), fresh_state(2)
    run(function, state, range(9))
    for counter in (state[3], state[7]):
        counter.sub_(4)  # as StaticCache.crop does
    for cache in (state[1], state[2], state[5], state[6]):
        cache[:, :, 5:] = float("nan")
    reads = function.stats.host_reads
    assert_steps(run(function, state, range(5, 9)), range(5, 9))
    assert function.stats.host_reads == reads + 1


def test_another_graph_that_advances_the_counter_is_noticed() -> None:
    first, second, state = capture(decode_graph()), capture(decode_graph()), fresh_state(2)
    outputs = []
    for step in range(12):
        outputs += run(second if step in (4, 5, 9) else first, state, range(step, step + 1))
    assert_steps(outputs, range(12))


def test_counters_without_versions_are_read_every_step() -> None:
    function = capture(decode_graph())
    with torch.inference_mode():
        state = fresh_state(2)
        assert_steps(run(function, state, range(6)), range(6))
    assert function.stats.host_reads == 6


def test_a_failed_step_leaves_no_wrong_mirror() -> None:
    function, state = capture(decode_graph()), fresh_state(2)
    run(function, state, range(3))
    graph = function.graphs[0]
    replay = graph.replay
    graph.replay = lambda: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        function(*step_inputs(3), *state)
    graph.replay = replay  # type: ignore[method-assign]
    assert_steps(run(function, state, range(3, 6)), range(3, 6))


def test_two_length_tensors_are_one_read() -> None:
    def step(q: Tensor, kv: Tensor, mask: Tensor, n: Tensor) -> Tensor:
        return fia(fia(q, kv, kv, host_lengths(mask.sum(-1))), kv, kv, host_lengths(n))

    mask = torch.arange(CAPACITY) < torch.tensor([[9], [17]])
    args = [torch.zeros(B, N, 1, D), torch.zeros(B, N_KV, CAPACITY, D), mask, torch.tensor([3, 37])]
    stats = CaptureStats()
    source = LengthSource(split(lowered(step, args)), stats)
    assert not source.mirrored
    assert source.lengths(args) == [[9, 17], [3, 37]]
    assert stats.host_reads == 1


def test_constant_lengths_are_never_read() -> None:
    def step(q: Tensor, kv: Tensor) -> Tensor:
        return fia(q, kv, kv, host_lengths(torch.full((B,), 17)))

    args = [torch.zeros(B, N, 1, D), torch.zeros(B, N_KV, CAPACITY, D)]
    stats = CaptureStats()
    assert LengthSource(split(lowered(step, args)), stats).lengths(args) == [[17, 17]]
    assert stats.host_reads == 0


def test_the_counter_itself_advances_once_a_step() -> None:
    function, state = capture(decode_graph()), fresh_state(2)
    for step in range(8):
        function(*step_inputs(step), *state)
        assert state[3].item() == state[7].item() == step + 1
