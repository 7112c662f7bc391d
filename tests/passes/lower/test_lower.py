"""What sites become: graph text before and after, and values against the graph as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify, writes_of
from tests.passes.graphs import aten_graph, random, text

B, N, KV, Q, K, D = 2, 6, 3, 5, 17, 16
FIA = "npu_fused_infer_attention_score"
Tensor = torch.Tensor


def lowered(
    function: Callable[..., Any], *inputs: Any, target: Target = Target.CPU
) -> tuple[fx.GraphModule, tuple[SiteOutcome, ...]]:
    """``function`` lowered and verified; on the CPU its result is compared with the graph as it was."""
    ensure_graph_ops()
    module = aten_graph(function, *inputs)
    plain = copy.deepcopy(module)
    outcomes = lower(module, recognise(module.graph), target)
    verify(module.graph)
    assert writes_of(module.graph) == writes_of(plain.graph)
    expected, got = plain(*copy.deepcopy(inputs)), module(*copy.deepcopy(inputs))
    tolerance = 1e-5 if inputs[0].dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=0, equal_nan=True)
    return module, outcomes


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op == "call_function" and FIA in str(n.target)]


def qkv(kv_heads: int = N, queries: int = Q, keys: int = K, dtype: Any = torch.float32) -> Any:
    return (
        random(B, N, queries, D, dtype=dtype),
        random(B, kv_heads, keys, D, seed=1, dtype=dtype),
        random(B, kv_heads, keys, D, seed=2, dtype=dtype),
    )


def test_text_before_and_after() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(2, 3)) * 0.25).softmax(-1) @ v

    assert text(aten_graph(attend, *qkv())) == [
        "transpose = transpose.int(k_1, 2, 3)",
        "matmul = matmul.default(q_1, transpose)",
        "mul = mul.Tensor(matmul, 0.25)",
        "softmax = softmax.int(mul, -1)",
        "matmul_1 = matmul.default(softmax, v_1)",
    ]
    module, _ = lowered(attend, *qkv())
    assert text(module) == [
        f"{FIA}_default = {FIA}.default(q_1, k_1, v_1, num_heads=6, num_key_value_heads=6, scale=0.25, "
        "input_layout=BNSD_BSND, sparse_mode=0)",
        f"getitem = getitem({FIA}_default, 0)",
        "transpose_int = transpose.int(getitem, 1, 2)",
    ]


def test_repeated_heads_are_gone() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(B, KV, 2, K, D).reshape(B, N, K, D) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v)

    module, (outcome,) = lowered(attend, *qkv(kv_heads=KV))
    assert not any("expand" in line for line in text(module))
    assert (outcome.num_heads, outcome.num_key_value_heads) == (N, KV)


def test_causal_flag_is_aligned_top_left() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    module, (outcome,) = lowered(attend, *qkv(keys=K))
    assert outcome.sparse_mode == 2
    (call,) = calls(module)
    assert call.kwargs["atten_mask"].op == "get_attr"


@pytest.mark.parametrize("queries", [1, Q])
def test_static_cache_decode_reads_the_cache_itself(queries: int) -> None:
    """The key is the cache that was written in place, bounded by the length that the counter held."""

    def step(q: Tensor, k: Tensor, v: Tensor, new: Tensor, count: Tensor) -> Tensor:
        at = torch.arange(queries) + count
        keep = torch.arange(K) <= at[:, None]
        count.add_(queries)
        k.index_copy_(2, at, new)
        v.index_copy_(2, at, new)
        return F.scaled_dot_product_attention(q, k, v, keep)

    inputs = (*qkv(queries=queries), random(B, N, queries, D, seed=5), torch.tensor(7))
    module, (outcome,) = lowered(step, *inputs)
    (call,) = calls(module)
    assert str(call.args[1].target) == "aten.index_copy_.default"
    assert outcome.cache == "static"
    assert outcome.sparse_mode == (0 if queries == 1 else 3)
    assert call.kwargs["actual_seq_lengths_kv"] is not None


def test_layers_share_one_length_and_one_mask() -> None:
    def two_layers(q: Tensor, k: Tensor, v: Tensor, count: Tensor) -> Tensor:
        keep = torch.arange(K) <= torch.arange(Q)[:, None] + count
        q = F.scaled_dot_product_attention(q, k, v, keep)
        return F.scaled_dot_product_attention(q, k, v, keep)

    module, _ = lowered(two_layers, *qkv(), torch.tensor(3))
    first, second = calls(module)
    assert first.kwargs["actual_seq_lengths_kv"] is second.kwargs["actual_seq_lengths_kv"]
    assert first.kwargs["atten_mask"] is second.kwargs["atten_mask"]


EMPTY_ROWS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "boolean: 0": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    "-inf under SDPA: 0": lambda q, k, v, m: F.scaled_dot_product_attention(
        q, k, v, torch.zeros(()).masked_fill(~m, float("-inf"))
    ),
    "finite minimum: the mean of V": lambda q, k, v, m: (
        ((q @ k.mT) * 0.25 + torch.where(m, 0.0, torch.finfo(q.dtype).min)).softmax(-1) @ v
    ),
    "-inf by hand: NaN": lambda q, k, v, m: (
        ((q @ k.mT) * 0.25).masked_fill(~m, float("-inf")).softmax(-1) @ v
    ),
}


@pytest.mark.parametrize("kind", EMPTY_ROWS)
def test_rows_without_keys_give_what_the_program_gives(kind: str) -> None:
    mask = torch.ones(B, 1, Q, K, dtype=torch.bool)
    mask[0, :, :2] = False
    _, (outcome,) = lowered(EMPTY_ROWS[kind], *qkv(), mask)
    assert outcome.lowered


def test_device_target_refuses_float32_with_the_operators_rule() -> None:
    _, (outcome,) = lowered(F.scaled_dot_product_attention, *qkv(), target=Target.ASCEND910B)
    assert outcome.op is None
    assert "float32" in str(outcome.reason)


def test_device_target_gets_contiguous_inputs_in_the_layout_that_copies_least() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))

    inputs = [random(B, s, N, D, dtype=torch.bfloat16) for s in (Q, K, K)]
    module, (outcome,) = lowered(attend, *inputs, target=Target.ASCEND910B)
    assert outcome.input_layout == "BSND"
    assert not any("contiguous" in line for line in text(module))


def test_device_target_copies_what_is_not_contiguous() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k[:, :, ::2], v[:, :, ::2])

    module, _ = lowered(attend, *qkv(dtype=torch.bfloat16), target=Target.ASCEND910B)
    assert sum(line.startswith("contiguous") for line in text(module)) == 2


def test_three_dimensions_come_back_as_three() -> None:
    q, k, v = (x[0] for x in qkv())
    lowered(F.scaled_dot_product_attention, q, k, v)


def test_permuted_result_comes_back_permuted() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bhkd->bqhd", p, v)

    lowered(attend, *qkv())


def test_a_bias_made_before_its_sizes_are_known_is_expanded_after_them() -> None:
    """The key length is first measured on keys that the program makes after the bias."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        halved = bias[:1] * 0.5
        keys, values = torch.cat([k, k], 2), torch.cat([v, v], 2)
        return F.scaled_dot_product_attention(q * 1, keys, values, halved)

    compiled = torch.compile(attend, backend="ascend_fia", dynamic=True)
    for keys in (7, 5):
        q, k, v = random(2, 4, 7, 16), random(2, 4, keys, 16, seed=1), random(2, 4, keys, 16, seed=2)
        bias = random(1, 1, 1, 2 * keys, seed=3)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, torch.cat([k, k], 2)).double() / 4 + bias.double() / 2
        expected = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), torch.cat([v, v], 2).double())
        torch.testing.assert_close(compiled(q, k, v, bias).double(), expected, rtol=1e-5, atol=1e-5)
