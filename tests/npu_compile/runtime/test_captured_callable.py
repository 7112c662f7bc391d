"""The captured callable: right results, what is captured when, and what happens to moved tensors."""

import threading

import pytest
import torch
from torch import Tensor

from npu_compile.runtime import BusyError, CaptureError, CaptureOptions, MovedInputError, capture
from npu_compile.runtime.cpu_graph import CpuGraphRuntime
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

LAYERS = 3


def assert_step(output: Tensor, step: int, batch: int = B) -> None:
    expected = expected_decode(LAYERS, step + 1, batch)[step]
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=0)


def test_one_capture_many_steps() -> None:
    function, state = capture(decode_graph(LAYERS)), fresh_state(LAYERS)
    kept = [function(*step_inputs(step), *state)[0] for step in range(10)]
    for step, output in enumerate(kept):
        assert_step(output, step)  # also long after the next replay has overwritten the graph's memory
    stats = function.stats
    assert (stats.captures, stats.replays, stats.updates, stats.warmups) == (1, 9, 9, 1)
    assert not stats.fallbacks


def test_one_capture_per_shape() -> None:
    def step(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (x @ weight,)

    weight = torch.nn.Parameter(torch.rand(D, D), requires_grad=False)
    function = capture(lowered(step, (torch.rand(3, D), weight)))
    for rows in (3, 5, 3, 17, 5, 3):
        x = torch.rand(rows, D)
        torch.testing.assert_close(function(x, weight)[0], x @ weight)
    assert function.stats.captures == 3
    assert function.stats.replays == 3
    assert function.stats.updates == 0, "there is nothing to update"


def test_a_moved_cache_is_captured_again() -> None:
    function, state = capture(decode_graph(LAYERS)), fresh_state(LAYERS)
    for step in range(4):
        function(*step_inputs(step), *state)
    state[1] = state[1].clone()
    for step in range(4, 8):
        assert_step(function(*step_inputs(step), *state)[0], step)
    assert (function.stats.captures, function.stats.recaptures) == (2, 1)
    assert len(function.graphs) == 1, "the graph of the old address is gone"


def test_a_moved_cache_is_an_error_if_asked() -> None:
    function = capture(decode_graph(LAYERS), CaptureOptions(on_move="error"))
    state = fresh_state(LAYERS)
    function(*step_inputs(0), *state)
    state[1] = state[1].clone()
    with pytest.raises(MovedInputError, match=r"\(2, 2, 37, 16\), cpu\): not at the address"):
        function(*step_inputs(1), *state)


def test_weights_written_in_place_are_seen() -> None:
    def step(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    x, weight = torch.rand(D), torch.nn.Parameter(torch.rand(D), requires_grad=False)
    function = capture(lowered(step, (x, weight)))
    function(x, weight)
    weight.data.mul_(3)
    torch.testing.assert_close(function(x, weight), x * weight)
    assert (function.stats.captures, function.stats.replays) == (1, 1)


@pytest.mark.parametrize("how", ["new parameter", "new data"])
def test_replaced_weights_are_captured_again(how: str) -> None:
    def step(x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    x, weight = torch.rand(D), torch.nn.Parameter(torch.rand(D), requires_grad=False)
    function = capture(lowered(step, (x, weight)))
    function(x, weight)
    old = weight.data  # held, so that the new weight can't get its address
    if how == "new data":
        weight.data = torch.rand(D)
    else:
        weight = torch.nn.Parameter(torch.rand(D), requires_grad=False)
    torch.testing.assert_close(function(x, weight), x * weight)
    torch.testing.assert_close(function(x, weight), x * weight)
    assert not torch.equal(old, weight)
    assert function.stats.recaptures == 1


def test_shapes_that_never_repeat_stop_being_captured() -> None:
    function = capture(lowered(lambda x: (x * 2,), (torch.rand(3),)))
    for size in range(1, 30):
        torch.testing.assert_close(function(torch.ones(size))[0], torch.full((size,), 2.0))
    assert function.stats.captures == 8
    assert list(function.stats.fallbacks.values()) == [21]
    assert "never replayed" in next(iter(function.stats.fallbacks))


def test_max_graphs() -> None:
    function = capture(lowered(lambda x: (x * 2,), (torch.rand(3),)), CaptureOptions(max_graphs=2))
    for size in (1, 1, 2, 2, 3, 3):
        function(torch.ones(size))
    assert function.stats.captures == 2
    assert dict(function.stats.fallbacks) == {"2 shapes are captured already (max_graphs)": 2}


def unpredictable_lengths(q: Tensor, kv: Tensor) -> tuple[Tensor]:
    first = fia(q, kv, kv, None)
    return (fia(first, kv, kv, host_lengths(first[:, 0, 0, 0].long().clamp(1, 5))),)


def test_what_cannot_be_captured_runs_uncaptured() -> None:
    args = [torch.rand(B, N, 1, D), torch.rand(B, N_KV, CAPACITY, D)]
    gm = lowered(unpredictable_lengths, args)
    function = capture(gm)
    torch.testing.assert_close(function(*args)[0], gm(*args)[0])
    ((reason, count),) = function.stats.fallbacks.items()
    assert "the lengths depend on the result of an attention call" in reason
    assert count == 1
    assert function.plan.rows == ()


def test_what_cannot_be_captured_is_an_error_if_asked() -> None:
    args = [torch.rand(B, N, 1, D), torch.rand(B, N_KV, CAPACITY, D)]
    with pytest.raises(CaptureError, match="result of an attention call"):
        capture(lowered(unpredictable_lengths, args), CaptureOptions(on_refusal="error"))


def test_an_error_inside_a_capture_leaves_nothing_behind() -> None:
    class Failing(CpuGraphRuntime):
        fail = True

        def capture(self, split, args, updates):  # type: ignore[no-untyped-def]
            if self.fail:
                raise ZeroDivisionError("inside the capture")
            return super().capture(split, args, updates)

    runtime = Failing()
    function, state = capture(decode_graph(LAYERS), runtime=runtime), fresh_state(LAYERS)
    with pytest.raises(ZeroDivisionError):
        function(*step_inputs(0), *state)
    assert function.graphs == []
    runtime.fail = False
    state = fresh_state(LAYERS)
    for step in range(4):
        assert_step(function(*step_inputs(step), *state)[0], step)
    assert function.stats.captures == 1


def test_gradients_are_not_lost() -> None:
    weight = torch.nn.Parameter(torch.rand(D))
    function = capture(lowered(lambda x, w: (x * w,), (torch.rand(D), weight)))
    x = torch.rand(D)
    function(x, weight)[0].sum().backward()
    torch.testing.assert_close(weight.grad, x)
    assert "gradients" in next(iter(function.stats.fallbacks))
    with torch.no_grad():
        function(x, weight)
    assert function.stats.captures == 1


def test_inputs_on_a_device_without_graphs_run_uncaptured() -> None:
    function = capture(lowered(lambda x: (x * 2,), (torch.rand(3),)))
    assert function(torch.empty(3, device="meta"))[0].device.type == "meta"
    assert dict(function.stats.fallbacks) == {"there is no graph capture for tensors on meta": 1}


def test_layers_of_different_kinds_get_their_own_lengths() -> None:
    """FIA v1 and v2, whole and windowed lengths, two head dims, one call without lengths."""

    def step(q: Tensor, kv: Tensor, wide: Tensor, whole: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        full, near = host_lengths(whole), host_lengths(window)
        narrow = fia(fia_v2(fia(q, kv, kv, full), kv, kv, near), kv, kv, None)
        doubled = torch.cat([q, q], -1)
        return narrow, fia(fia_v2(doubled, wide, wide, full), wide, wide, near)

    torch.manual_seed(0)
    kv, wide = torch.rand(B, N_KV, CAPACITY, D), torch.rand(B, N_KV, CAPACITY, 2 * D)
    args = [torch.rand(B, N, 1, D), kv, wide, torch.tensor([1, 2]), torch.tensor([1, 1])]
    gm = lowered(step, args)
    function = capture(gm)
    for count in range(1, 30):
        args[0] = torch.rand(B, N, 1, D)
        args[3], args[4] = torch.tensor([count, count + 1]), torch.tensor([min(count, 5), min(count + 1, 5)])
        for got, want in zip(function(*args), gm(*args), strict=True):
            torch.testing.assert_close(got, want, atol=0, rtol=0)
    records = function.graphs[0].records
    assert [list(record.lengths.values()) for record in records] == [
        [[29, 30]],
        [[5, 5]],
        [],
        [[29, 30]],
        [[5, 5]],
    ]


def test_threads_take_turns() -> None:
    function = capture(lowered(lambda x: (torch.sin(x) * 2,), (torch.rand(500),)))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((500,), float(seed))
        for _ in range(50):
            if not torch.equal(function(x)[0], torch.sin(x) * 2):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert function.stats.captures == 1
    assert function.stats.replays == 199


def test_threads_are_refused_if_asked() -> None:
    inside, leave = threading.Event(), threading.Event()

    class Slow(CpuGraphRuntime):
        def eager(self, split, args, updates):  # type: ignore[no-untyped-def]
            inside.set()
            leave.wait(10)
            return super().eager(split, args, updates)

    gm = lowered(lambda x: (x * 2,), (torch.rand(3),))
    function = capture(gm, CaptureOptions(threads="refuse"), Slow())
    thread = threading.Thread(target=function, args=(torch.rand(3),))
    thread.start()
    assert inside.wait(10)
    with pytest.raises(BusyError, match="another thread is running"):
        function(torch.rand(3))
    leave.set()
    thread.join()
    function(torch.rand(3))


def test_reset_inside_a_capture_is_refused() -> None:
    class Resetting(CpuGraphRuntime):
        def capture(self, split, args, updates):  # type: ignore[no-untyped-def]
            function.reset()

    function = capture(lowered(lambda x: (x * 2,), (torch.rand(3),)), runtime=Resetting())
    with pytest.raises(BusyError, match="reset was called while the same callable is running or capturing"):
        function(torch.rand(3))
    function.reset()


def test_results_that_are_inputs_stay_inputs() -> None:
    def step(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cache.add_(x)
        return cache, cache[1:], x, x.view(-1)

    cache = torch.zeros(4)
    function = capture(lowered(step, (torch.ones(4), cache)))
    for count in range(1, 4):
        x = torch.ones(4)
        same, view, given, flat = function(x, cache)
        assert same is cache
        assert view.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
        assert view.tolist() == [count] * 3
        assert given is x
        assert flat.tolist() == [1] * 4


def test_results_that_share_memory_share_it_still() -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        doubled = x * 2
        return doubled, doubled[1:], x * 3

    function = capture(lowered(step, (torch.rand(5, 3),)))
    for _ in range(3):
        x = torch.rand(5, 3)
        whole, rest, other = function(x)
        torch.testing.assert_close([whole, rest, other], [x * 2, x[1:] * 2, x * 3])
        whole[1:].zero_()
        assert rest.eq(0).all()
        torch.testing.assert_close(other, x * 3)


def test_a_result_of_another_dtype_over_an_input() -> None:
    def step(x: Tensor, cache: Tensor) -> tuple[Tensor]:
        cache.add_(x)
        return (cache.view(torch.int32),)

    cache = torch.zeros(4)
    function = capture(lowered(step, (torch.ones(4), cache)))
    for _ in range(3):
        assert torch.equal(function(torch.ones(4), cache)[0], cache.view(torch.int32))


def test_a_view_of_a_written_input_given_as_another_input_is_not_copied() -> None:
    def step(cache: Tensor, row: Tensor) -> tuple[Tensor]:
        cache.add_(1)
        return (row * 2,)

    cache = torch.zeros(3, 5)
    function = capture(lowered(step, (torch.zeros(3, 5), torch.zeros(5))))
    for count in range(1, 4):
        assert function(cache, cache[1])[0].tolist() == [2 * count] * 5
