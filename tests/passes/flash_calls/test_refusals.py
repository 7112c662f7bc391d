"""FlashAttention calls that stay as they are, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.passes.flash_calls.calls import CU_K, CU_Q, DIM, HEADS, KV_HEADS, TABLE, packed_inputs, translated
from tests.passes.graphs import random

FA3 = torch.ops.flash_attn_3._flash_attn_forward
BATCH = random(2, 5, HEADS, DIM), random(2, 7, KV_HEADS, DIM), random(2, 7, KV_HEADS, DIM)
PAGES = random(2, 1, HEADS, DIM), random(7, 16, KV_HEADS, DIM), random(7, 16, KV_HEADS, DIM)
USED = torch.tensor([5, 9], dtype=torch.int32)


@pytest.mark.parametrize(
    ("inputs", "arguments", "reason"),
    [
        (BATCH, {"softcap": 30.0}, "softcap=30.0: FIA has nothing like it"),
        (BATCH, {"attention_chunk": 4}, "attention_chunk=4"),
        (BATCH, {"qv": random(2, 5, HEADS, 8)}, "qv=arg3_1"),
        (BATCH, {"q_descale": torch.ones(2, 2)}, "q_descale=arg3_1"),
        (BATCH, {"kv_batch_idx": USED}, "kv_batch_idx=arg3_1"),
        (BATCH, {"cu_seqlens_k": CU_K}, "cu_seqlens_k: keys are packed, but the queries aren't"),
        (BATCH[1:2] * 3, {"causal": True, "seqused_q": USED}, "seqused_q=arg3_1"),
        ((random(2, 9, HEADS, DIM), *BATCH[1:]), {"causal": True}, "9 queries over 7 keys"),
        (packed_inputs(), {"cu_seqlens_q": CU_Q}, "cu_seqlens_q: keys aren't packed as the queries are"),
        (PAGES, {"page_table": TABLE}, "block_table: nothing says how many keys"),
        (
            PAGES,
            {"page_table": TABLE, "seqused_k": USED, "causal": True, "window_size_left": 3},
            "window 3 to 0, from the bottom right: FIA can't read a window from a paged cache",
        ),
        (PAGES, {"page_table": TABLE.long(), "seqused_k": USED}, "block_table"),
        (
            BATCH,
            {"k_new": BATCH[1], "v_new": BATCH[2], "seqused_k": USED},
            "new keys are written for a batch",
        ),
        (PAGES, {"k_new": PAGES[0], "page_table": TABLE, "seqused_k": USED}, "one of them is missing"),
    ],
)
def test_stays(inputs: Any, arguments: dict[str, Any], reason: str) -> None:
    names = [name for name, given in arguments.items() if isinstance(given, Tensor)]
    plain = {name: given for name, given in arguments.items() if name not in names}

    def program(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        return FA3(q, k, v, **dict(zip(names, given, strict=True)), **plain)[0]

    module, (outcome,) = translated(program, *inputs, *(arguments[name] for name in names))
    assert outcome.op is None
    assert reason in str(outcome.reason)
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert calls == ["flash_attn_3._flash_attn_forward.default", "<built-in function getitem>"]


def test_the_log_sum_exp_is_read() -> None:
    _, (outcome,) = translated(lambda q, k, v: FA3(q, k, v)[:2], *BATCH)
    assert outcome.reason == "results beside the output are read, such as the log-sum-exp"


def test_relatives() -> None:
    """Other attention operators are named; a backward isn't attention of this graph."""
    library = torch.ops.flash_attn

    def program(q: Tensor) -> tuple[Tensor, Tensor]:
        return library._flash_attn_sparse(q, q, q), library._flash_attn_backward(q, q, q)

    _, outcomes = translated(program, BATCH[0])
    assert [outcome.reason for outcome in outcomes] == [
        "flash_attn._flash_attn_sparse.default isn't one of FlashAttention's operators that are known"
    ]


def test_operators_of_torch_npu_are_reported() -> None:
    """What transformers' "flash_attention_2" calls on an NPU."""

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.npu.npu_fusion_attention(q, k, v, HEADS, "BSND", scale=0.25)[0]

    module, (outcome,) = translated(program, *BATCH)
    assert outcome.form == "fused"
    assert outcome.reason == "npu.npu_fusion_attention.default is a fused operator already"
    assert torch.equal(module(*BATCH), program(*BATCH))
