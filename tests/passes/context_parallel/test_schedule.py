"""Collectives start before what they don't need, and nothing else changes."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.context_parallel.schedule import overlapped, start_early

C10D = torch.ops._c10d_functional


def gather(x):
    return C10D.all_gather_into_tensor.default(x, 2, "a group")


def graph_of(program, *inputs):
    module = make_fx(program, tracing_mode="fake")(*inputs)
    starts = [node for node in module.graph.nodes if node.target is C10D.all_gather_into_tensor.default]
    start_early(starts)
    module.graph.lint()
    return [node.name for node in module.graph.nodes], starts, module


def attention_like(x, wq, wk, wv):
    q = (x @ wq) * 2
    k = (x @ wk).relu()
    v = x @ wv
    started_v, started_k = gather(v), gather(k)
    all_v, all_k = C10D.wait_tensor.default(started_v), C10D.wait_tensor.default(started_k)
    return (q.unsqueeze(1) * all_k.unsqueeze(0)).sum(-1) @ all_v


def test_queries_are_computed_while_keys_travel():
    names, (v, k), _ = graph_of(attention_like, *(torch.randn(4, 4) for _ in range(4)))
    assert names.index("mm_2") < names.index(v.name) < names.index("mm_1") < names.index(k.name)
    assert names.index(k.name) < names.index("mm") < names.index("wait_tensor")
    assert [node.name for node in overlapped(k)] == ["mm", "mul", "wait_tensor"]
    assert [node.name for node in overlapped(v)] == ["mm_1", "relu", k.name, "mm", "mul"]


def test_the_result_is_the_same():
    inputs = [torch.randn(4, 4) for _ in range(4)]
    module = make_fx(lambda a, b: (a @ b).relu() + (gather(a * 2) - gather(a * 2))[:4], tracing_mode="fake")(
        *inputs[:2]
    )
    before = {node.name for node in module.graph.nodes}
    starts = [node for node in module.graph.nodes if node.target is C10D.all_gather_into_tensor.default]
    start_early(starts)
    module.graph.lint()
    assert {node.name for node in module.graph.nodes} == before


def test_nothing_moves_past_a_write_to_memory():
    def program(x, cache):
        y = x * 2
        cache.add_(1)
        z = cache * 3
        return y, z, C10D.wait_tensor.default(gather(cache + 1))

    names, (start,), _ = graph_of(program, torch.randn(4), torch.randn(4))
    assert names.index("mul") < names.index("add_") < names.index(start.name) < names.index("mul_1")
