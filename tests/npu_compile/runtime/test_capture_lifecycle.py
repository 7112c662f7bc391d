"""Capture, run, new weights, reset, capture again: nothing may be left of the last round."""

import gc
import os
import weakref

import pytest
import torch
from torch import Tensor

from npu_compile import runtime
from npu_compile.runtime import CaptureOptions, ReplayError, capture
from tests.npu_compile.runtime.decode_graphs import decode_graph, expected_decode, fresh_state, step_inputs

LAYERS, STEPS = 2, 5


def rollout(function: runtime.CapturedCallable, state: list[Tensor]) -> list[Tensor]:
    return [function(*step_inputs(step), *state)[0] for step in range(STEPS)]


def assert_right(outputs: list[Tensor], scale: float = 1.0) -> None:
    """``scale`` is what the last layer's weight was multiplied by."""
    for output, expected in zip(outputs, expected_decode(LAYERS, STEPS), strict=True):
        torch.testing.assert_close(output.double(), expected * scale, atol=1e-5, rtol=1e-5)


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(x), Tensor) for x in gc.get_objects())


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_rounds_of_new_weights() -> None:
    function = capture(decode_graph(LAYERS))
    for scale in (1.0, 2.0, -3.0):
        state = fresh_state(LAYERS)
        assert_right(rollout(function, state))
        for keys, values, counter in (state[1:4], state[5:8]):
            keys.fill_(float("nan"))
            values.fill_(float("nan"))
            counter.zero_()
        state[4].data.mul_(scale)  # in place, as a weight update is
        assert_right(rollout(function, state), scale)
        function.reset()
    assert function.stats.captures == 3
    assert function.stats.recaptures == 0


def test_reset_lets_go_of_everything() -> None:
    function, state = capture(decode_graph(LAYERS)), fresh_state(LAYERS)
    rollout(function, state)
    held = [weakref.ref(x) for x in state]
    graph = weakref.ref(function.graphs[0])
    buffers = [weakref.ref(x) for x in function.graphs[0].outputs]
    function.reset()
    del state
    gc.collect()
    assert [reference() for reference in [graph, *held, *buffers]] == [None] * (1 + len(held) + len(buffers))
    assert function.graphs == []


def test_without_reset_the_memory_a_graph_reads_is_not_given_away() -> None:
    function, state = capture(decode_graph(LAYERS)), fresh_state(LAYERS)
    rollout(function, state)
    address, size = state[1].data_ptr(), state[1].numel()
    del state
    gc.collect()
    assert address not in [x.data_ptr() for x in [torch.empty(size) for _ in range(50)]]


def test_reset_keeps_the_options() -> None:
    options = CaptureOptions(capture_sizes=(2, 8), on_move="error")
    function = capture(decode_graph(LAYERS), options)
    rollout(function, fresh_state(LAYERS))
    function.reset()
    assert function.options == options
    assert_right(rollout(function, fresh_state(LAYERS)))


def test_a_graph_that_was_reset_refuses_to_run() -> None:
    function = capture(decode_graph(LAYERS))
    rollout(function, fresh_state(LAYERS))
    graph = function.graphs[0]
    function.reset()
    with pytest.raises(ReplayError, match="reset"):
        graph.replay()


def test_the_global_reset_reaches_every_callable() -> None:
    functions = [capture(decode_graph(LAYERS)) for _ in range(2)]
    for function in functions:
        rollout(function, fresh_state(LAYERS))
    runtime.reset()
    assert [function.graphs for function in functions] == [[], []]


def test_a_callable_nobody_uses_is_freed() -> None:
    function, state = capture(decode_graph(LAYERS)), fresh_state(LAYERS)
    rollout(function, state)
    dead = weakref.ref(function)
    del function
    gc.collect()
    assert dead() is None


def test_many_rounds_do_not_grow() -> None:
    function = capture(decode_graph(LAYERS))

    def one_round() -> None:
        rollout(function, fresh_state(LAYERS))
        function.reset()

    one_round()
    tensors = live_tensors()
    for _ in range(3):
        one_round()
    resident = resident_bytes()
    for _ in range(20):
        one_round()
    assert live_tensors() <= tensors
    assert resident_bytes() <= resident * 1.02
