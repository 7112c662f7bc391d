"""Translated FlashAttention calls against loops in float64 over the keys that each query sees."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import npu_compile
from npu_compile.kernels.targets import Target
from npu_compile.passes.verify import fused_calls
from tests.passes.flash_calls.calls import (
    CU_K,
    CU_Q,
    DIM,
    HEADS,
    KV_HEADS,
    close,
    oracle,
    packed_inputs,
    packed_oracle,
    translated,
)
from tests.passes.graphs import random

ops = torch.ops

BANDS = [
    # causal, left, right; keys before and behind the own one
    (False, -1, -1, None, None),
    (True, -1, -1, None, 0),
    (False, -1, 0, None, 0),
    (True, 4, 0, 4, 0),
    (True, 4, 7, 4, 0),
    (True, 0, 0, 0, 0),
    (False, 3, 2, 3, 2),
]


@pytest.mark.parametrize(("causal", "left", "right", "before", "behind"), BANDS)
def test_packed(causal: bool, left: int, right: int, before: int | None, behind: int | None) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        return ops.flash_attn._flash_attn_varlen_forward(
            q, k, v, cu_q, cu_k, 17, 17, 0.0, 0.3, causal, window_size_left=left, window_size_right=right
        )[0]

    module, (outcome,) = translated(program, *packed_inputs(), CU_Q, CU_K)
    q, k, v = packed_inputs()
    close(module(q, k, v, CU_Q, CU_K), packed_oracle(q, k, v, before, behind, scale=0.3))
    assert (outcome.lowered, outcome.input_layout, outcome.form) == (True, "TND", "flash")
    assert outcome.lengths == "from cu_q_1, cu_k_1"


def test_hub_kernels_names() -> None:
    """The same operator as transformers' kernels from the Hub name it; it declares that it writes to q."""

    def program(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        hub = ops._flash_attn2_0123abc.varlen_fwd
        none = (None,) * 4
        return hub(q, k, v, None, cu_q, cu_k, *none, 17, 17, 0.0, 0.3, False, True, -1, -1, 0.0, False, None)[
            0
        ]

    module, _ = translated(program, *packed_inputs(), CU_Q, CU_K)
    q, k, v = packed_inputs()
    close(module(q, k, v, CU_Q, CU_K), packed_oracle(q, k, v, scale=0.3))


@pytest.mark.parametrize("packed", [True, False])
def test_sinks(packed: bool) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *cu: Tensor) -> Tensor:
        fwd = ops._vllm_flash_attn3_0123abc.fwd
        if packed:
            return fwd(q, k, v, cu_seqlens_q=cu[0], cu_seqlens_k=cu[1], is_causal=True, s_aux=sinks)[0]
        return fwd(q, k, v, is_causal=True, window_size_left=3, s_aux=sinks)[0]

    sinks = random(HEADS, seed=5)
    if packed:
        inputs = (*packed_inputs(), sinks, CU_Q, CU_K)
        wanted = packed_oracle(*packed_inputs(), sinks=sinks)
    else:
        q, k, v = random(2, 5, HEADS, DIM), random(2, 7, KV_HEADS, DIM), random(2, 7, KV_HEADS, DIM, seed=3)
        inputs = (q, k, v, sinks)
        wanted = torch.stack([oracle(*one, 3, sinks=sinks) for one in zip(q, k, v, strict=True)])
    module, (outcome,) = translated(program, *inputs)
    close(module(*inputs), wanted)
    assert outcome.op == "npu_fused_infer_attention_score_v2"


@pytest.mark.parametrize(("causal", "left", "right", "before", "behind"), BANDS)
@pytest.mark.parametrize("queries", [5, 1])
def test_batch(
    queries: int, causal: bool, left: int, right: int, before: int | None, behind: int | None
) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.flash_attn._flash_attn_forward(q, k, v, 0.0, 0.3, causal, left, right, 0.0, None, False)[0]

    inputs = random(2, queries, HEADS, DIM), random(2, 7, KV_HEADS, DIM, seed=1), random(2, 7, KV_HEADS, 12)
    module, (outcome,) = translated(program, *inputs)
    if queries == 1 and before is not None:
        assert outcome.reason is not None and outcome.reason.endswith("one query token FIA ignores windows")
        return
    wanted = torch.stack([oracle(*one, before, behind, scale=0.3) for one in zip(*inputs, strict=True)])
    close(module(*inputs), wanted)


def varlen(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
    return ops.flash_attn._flash_attn_varlen_forward(q, k, v, cu_q, cu_k, 17, 17, 0.0, 0.3, True)[0]


def test_layers_share_lengths_and_mask() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor) -> Tensor:
        return varlen(q, k, v, cu_q, cu_k) + varlen(q * 2, k, v, cu_q, cu_k)

    module, outcomes = translated(program, *packed_inputs(), CU_Q, CU_K)
    assert len(outcomes) == len(list(fused_calls(module.graph))) == 2
    targets = [str(node.target) for node in module.graph.nodes]
    assert sum("host_lengths" in target for target in targets) == 2
    assert sum("causal_mask" in target for target in targets) == 1


def test_lengths_that_change_between_layers_are_read_again() -> None:
    q, k, v = (random(8, 2, DIM, seed=seed) for seed in range(3))

    def program(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        first = varlen(q, k, v, cu, cu)
        cu[1].add_(3)
        return first, varlen(q, k, v, cu, cu)

    module, _ = translated(program, q, k, v, torch.tensor([0, 2, 8]))
    first, second = module(q, k, v, torch.tensor([0, 2, 8]))
    for got, ends in ((first, [2, 6]), (second, [5, 3])):
        parts = zip(*(one.split(ends) for one in (q, k, v)), strict=True)
        close(got, torch.cat([oracle(*part, scale=0.3) for part in parts]))


def test_what_a_device_takes() -> None:
    q, k, v = (random(22, heads, 128, dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    _, (outcome,) = translated(varlen, q, k, v, CU_Q, CU_Q, target=Target.ASCEND910B)
    assert outcome.lowered
    narrow = [one[..., :96].contiguous() for one in (q, k, v)]
    _, (outcome,) = translated(varlen, *narrow, CU_Q, CU_Q, target=Target.ASCEND910B)
    assert not outcome.lowered and "96" in str(outcome.reason)


def test_compiled() -> None:
    """Through dynamo: there is no other kernel of the operator on the CPU, so a result is FIA's."""
    torch._dynamo.reset()
    compiled = torch.compile(varlen, backend="ascend_fia", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for scale in (1, 2):
            q, k, v = (one * scale for one in packed_inputs())
            close(compiled(q, k, v, CU_Q, CU_K), packed_oracle(q, k, v, scale=0.3))
    (site,) = npu_compile.last_report().sites
    assert (site.form, site.op) == ("flash", "npu_fused_infer_attention_score")
    assert "test_translate.py" in site.source
