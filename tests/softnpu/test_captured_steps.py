"""Captured callables on NPUGraph: one update per replay, right in every order the streams allow."""

import gc
import itertools
import threading
import weakref

import pytest
import torch

from npu_compile.runtime import CapturedCallable, capture
from tests.npu_compile.runtime.decode_graphs import fresh_state, step_inputs
from tests.softnpu import softnpu
from tests.softnpu.steps import assert_steps, npu_decode_graph, to_npu

LAYERS = 3
EVENT_WORD = 512
"""torch_npu 2.13 never frees the device word of an external event, of which each recorded call has one."""


def run(function: CapturedCallable, state: list[torch.Tensor], steps: range) -> list[torch.Tensor]:
    return [function(*to_npu(step_inputs(step)), *state)[0] for step in steps]


def test_steps() -> None:
    function = capture(npu_decode_graph(LAYERS))
    assert_steps(run(function, to_npu(fresh_state(LAYERS)), range(10)), LAYERS)
    stats = function.stats
    assert (stats.captures, stats.replays, stats.updates, stats.host_reads) == (1, 9, 9, 1)


@pytest.mark.parametrize("seed", range(1, 31))
def test_lazy_schedules(seed: int) -> None:
    """Nothing runs before somebody waits, then in a random order: several steps are in flight at once."""
    function, state = capture(npu_decode_graph(2)), to_npu(fresh_state(2))
    outputs = run(function, state, range(1))
    with softnpu.lazy(seed):
        outputs += run(function, state, range(1, 7))
        torch.npu.synchronize()
    assert_steps(outputs, 2)


def test_lazy_schedules_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait of the update stream, steps in flight overtake each other."""
    monkeypatch.setattr(torch.npu.Stream, "wait_stream", lambda self, other: None)
    wrong = 0
    for seed in range(1, 9):
        function, state = capture(npu_decode_graph(2)), to_npu(fresh_state(2))
        try:
            outputs = run(function, state, range(1))
            with softnpu.lazy(seed):
                outputs += run(function, state, range(1, 7))
                torch.npu.synchronize()
            assert_steps(outputs, 2)
        except (AssertionError, RuntimeError):  # wrong numbers, or a stream that can never finish
            wrong += 1
    assert wrong >= 4


def test_each_replay_has_one_update() -> None:
    function, state = capture(npu_decode_graph(LAYERS)), to_npu(fresh_state(LAYERS))
    run(function, state, range(1))
    with softnpu.launches() as names:
        run(function, state, range(1, 5))
    assert names.count("npu::npu_fused_infer_attention_score.out") == 4 * LAYERS


def test_a_counter_written_outside_is_read_again() -> None:
    function, state = capture(npu_decode_graph(2)), to_npu(fresh_state(2))
    run(function, state, range(6))
    state[3].sub_(2)
    state[7].sub_(2)
    assert_steps(run(function, state, range(4, 8)), 2, first=4)
    assert function.stats.host_reads == 2


def test_a_replay_of_another_graph_is_noticed() -> None:
    """A replay writes to its counters without autograd's knowledge; the runtime says so in its place."""
    first, second, state = capture(npu_decode_graph(2)), capture(npu_decode_graph(2)), to_npu(fresh_state(2))
    outputs = []
    for step in range(9):
        outputs += run(second if step in (2, 5, 6) else first, state, range(step, step + 1))
    assert_steps(outputs, 2)


def test_a_moved_cache() -> None:
    function, state = capture(npu_decode_graph(2)), to_npu(fresh_state(2))
    outputs = run(function, state, range(3))
    state[1] = state[1].clone()
    assert_steps(outputs + run(function, state, range(3, 6)), 2)
    assert function.stats.recaptures == 1


def test_rounds_of_capture_and_reset() -> None:
    function = capture(npu_decode_graph(2))

    def one_round() -> int:
        state = to_npu(fresh_state(2))
        assert_steps(run(function, state, range(4)), 2)
        graph = weakref.ref(function.graphs[0])
        held = [weakref.ref(x) for x in state]
        function.reset()
        del state
        gc.collect()
        assert [reference() for reference in (graph, *held)] == [None] * (1 + len(held))
        torch.npu.empty_cache()
        return softnpu.device_bytes_used()

    used = [one_round() for _ in range(5)]
    growth = [after - before for before, after in itertools.pairwise(used)]
    assert growth == [2 * EVENT_WORD] * 4


def test_streams_take_turns() -> None:
    function, state = capture(npu_decode_graph(2)), to_npu(fresh_state(2))
    outputs = run(function, state, range(2))
    torch.npu.synchronize()
    with softnpu.lazy(5):
        previous = torch.npu.current_stream()
        for step in range(2, 6):
            stream = torch.npu.Stream()
            stream.wait_stream(previous)
            with torch.npu.stream(stream):
                outputs += run(function, state, range(step, step + 1))
            previous = stream
        torch.npu.synchronize()
    assert_steps(outputs, 2)


def test_a_capture_does_not_disturb_other_threads() -> None:
    """Reading a value blocks the host, which a capture refuses, but only to the thread that captures."""
    stop, read, errors = threading.Event(), [0], []

    def keep_reading() -> None:
        torch.npu.set_device(0)
        x = torch.ones(3, device="npu")
        try:
            while not stop.is_set():
                read[0] += x.sum().item() == 3
        except RuntimeError as error:
            errors.append(error)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        for _ in range(3):
            assert_steps(run(capture(npu_decode_graph(2)), to_npu(fresh_state(2)), range(3)), 2)
    finally:
        stop.set()
        reader.join(60)
    assert not errors
    assert read[0] > 0


def test_threads() -> None:
    function = capture(npu_decode_graph(1))
    states = [to_npu(fresh_state(1)) for _ in range(2)]
    outputs: dict[int, list[torch.Tensor]] = {}

    def work(index: int) -> None:
        torch.npu.set_device(0)
        outputs[index] = run(function, states[index], range(4))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for index in range(2):
        assert_steps(outputs[index], 1)
