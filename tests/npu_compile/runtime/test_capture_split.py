"""Splitting a lowered graph: lengths ahead of the step, update plan, body."""

import pytest
import torch
from torch import Tensor

from npu_compile.runtime.errors import CaptureError
from npu_compile.runtime.split import split
from tests.npu_compile.runtime.decode_graphs import (
    CAPACITY,
    N_KV,
    B,
    D,
    N,
    decode_graph,
    fia,
    fia_v2,
    fresh_state,
    host_lengths,
    lowered,
    step_inputs,
)

Q = torch.zeros(B, N, 1, D)
KV = torch.zeros(B, N_KV, CAPACITY, D)


def lengths_of(function, *args) -> list[list[int]]:
    """What the length program of a graph computes on ``args``."""
    program = split(lowered(function, args)).program
    return [value.tolist() for value in program.module(*[args[i] for i in program.reads])]


def test_lengths_run_ahead_without_side_effects() -> None:
    args = [*step_inputs(0), *fresh_state(2)]
    args[6].fill_(11)
    parts = split(decode_graph(2))
    program = parts.program
    assert program.reads == (6,), "only the counter of the first layer matters"
    assert [value.tolist() for value in program.module(args[6])] == [[12, 12]]
    assert args[6].item() == 11
    assert parts.mutated == (4, 5, 6, 8, 9, 10)


def test_a_length_read_before_its_counter_advances() -> None:
    def step(q: Tensor, kv: Tensor, counter: Tensor) -> Tensor:
        before = host_lengths(counter.expand(B))
        counter.add_(5)
        return fia(q, kv, kv, before)

    assert lengths_of(step, Q, KV, torch.tensor(3)) == [[3, 3]]


def test_a_length_read_after_its_counter_advances() -> None:
    def step(q: Tensor, kv: Tensor, counter: Tensor) -> Tensor:
        counter.add_(5)
        first = fia(q, kv, kv, host_lengths(counter.expand(B)))
        counter.mul_(2)
        return fia(first, kv, kv, host_lengths(counter.expand(B)))

    counter = torch.tensor(3)
    assert lengths_of(step, Q, KV, counter) == [[8, 8], [16, 16]]
    assert counter.item() == 3


def test_a_counter_advanced_through_a_view() -> None:
    def step(q: Tensor, kv: Tensor, counters: Tensor) -> Tensor:
        counters[1:].add_(7)
        return fia(q, kv, kv, host_lengths(counters.clone()))

    assert lengths_of(step, Q, KV, torch.tensor([3, 4])) == [[3, 11]]


def test_lengths_of_a_padding_mask() -> None:
    def step(q: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
        return fia(q, kv, kv, host_lengths(mask.sum(-1)))

    mask = torch.zeros(B, CAPACITY, dtype=torch.bool)
    mask[0, :9], mask[1, :17] = True, True
    assert lengths_of(step, Q, KV, mask) == [[9, 17]]


def test_each_record_has_its_own_keys_and_sources() -> None:
    def step(q: Tensor, kv: Tensor, full: Tensor, window: Tensor) -> Tensor:
        whole, near = host_lengths(full), host_lengths(window)
        q = fia(q, kv, kv, near)
        q = fia_v2(q, kv, kv, whole)
        q = fia(q, kv, kv, whole)
        return fia_v2(q, kv, kv, None)

    plan = split(lowered(step, (Q, KV, torch.tensor([4, 5]), torch.tensor([2, 3])))).plan
    assert [(row.op.endswith("_v2"), dict(row.sources)) for row in plan.rows] == [
        (False, {"actual_seq_lengths_kv": 0}),
        (True, {"actual_seq_kvlen": 1}),
        (False, {"actual_seq_lengths_kv": 1}),
        (True, {}),
    ]
    assert plan.resolve([[2, 3], [4, 5]]) == [
        {"actual_seq_lengths_kv": [2, 3]},
        {"actual_seq_kvlen": [4, 5]},
        {"actual_seq_lengths_kv": [4, 5]},
        {},
    ]
    assert plan.updates([[2, 3], [4, 5]]) == plan.resolve([[2, 3], [4, 5]])


def test_a_uniform_plan_is_one_update() -> None:
    plan = split(decode_graph(3)).plan
    assert len(plan.rows) == 3
    assert plan.updates([[6, 6]]) == [{"actual_seq_lengths_kv": [6, 6]}]


def test_no_attention_no_plan() -> None:
    parts = split(lowered(lambda x: (x * 2,), (Q,)))
    assert parts.plan.rows == ()
    assert parts.program is None


def test_the_graph_is_left_alone() -> None:
    gm = decode_graph(2)
    before = str(gm.graph)
    split(gm)
    assert str(gm.graph) == before


@pytest.mark.parametrize("case", ["attention", "random", "large"])
def test_lengths_that_cannot_be_known_ahead(case: str) -> None:
    def step(q: Tensor, kv: Tensor) -> Tensor:
        if case == "attention":
            lengths = fia(q, kv, kv, None)[:, 0, 0, 0].long()
        elif case == "random":
            lengths = torch.randint(0, 9, (B,))
        else:
            kv.add_(1)
            lengths = kv[:, 0, 0, 0].long()
        return fia(q, kv, kv, host_lengths(lengths))

    reasons = {"attention": "result of an attention call", "random": "random number", "large": "large tensor"}
    kv = torch.zeros(B, N_KV, 4096, D)
    with pytest.raises(CaptureError, match=reasons[case]) as caught:
        split(lowered(step, (Q, kv)))
    assert caught.value.node


def test_lengths_from_elsewhere_are_refused() -> None:
    def step(q: Tensor, kv: Tensor, lengths: Tensor) -> Tensor:
        return fia(q, kv, kv, lengths)

    with pytest.raises(CaptureError, match=r"actual_seq_lengths_kv isn't the result of"):
        split(lowered(step, (Q, KV, torch.tensor([4, 5]))))


def test_python_in_the_graph_is_refused() -> None:
    gm = lowered(lambda x: (x * 2,), (Q,))
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(print, ("side effect",))
    with pytest.raises(CaptureError, match=r"node print.*Python function: it would run at capture only"):
        split(gm)
