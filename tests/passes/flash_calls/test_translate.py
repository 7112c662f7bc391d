"""Translated FlashAttention calls against loops in float64 over the keys that each query sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import npu_compile
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.flash_calls import translate_flash_calls
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import fused_calls, verify
from tests.npu_compile.hf.oracle import attend_row
from tests.passes.flash_calls import stand_ins
from tests.passes.graphs import aten_graph, random

ensure_graph_ops()
stand_ins.define()

ops = torch.ops
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 16, 16
Q_LENS, KV_LENS = [4, 1, 17], [7, 3, 17]
CU_Q, CU_K = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 4, 5, 22], [0, 7, 10, 27]))
TABLE = torch.tensor([[4, 1, 6], [2, 0, 3]], dtype=torch.int32)


def translated(
    function: Callable[..., Any], *inputs: Tensor, target: Target = Target.CPU
) -> tuple[fx.GraphModule, tuple[SiteOutcome, ...]]:
    module = aten_graph(function, *inputs)
    outcomes = translate_flash_calls(module, target)
    verify(module.graph)
    return module, outcomes


def oracle(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    before: int | None = None,
    behind: int | None = 0,
    scale: float = DIM**-0.5,
    sinks: Tensor | None = None,
) -> Tensor:
    """(Lq, N, Dv) of one request."""
    shift = len(key) - len(query)
    out = torch.zeros(len(query), query.shape[1], value.shape[-1], dtype=torch.float64)
    for row in range(len(query)):
        first = 0 if before is None else max(0, row + shift - before)
        last = len(key) if behind is None else row + shift + behind + 1
        for head in range(query.shape[1]):
            group = head // (query.shape[1] // key.shape[1])
            sink = None if sinks is None else float(sinks[head])
            seen = slice(first, last)
            out[row, head] = attend_row(query[row, head], key[seen, group], value[seen, group], scale, sink)
    return out


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)


def packed_inputs() -> tuple[Tensor, Tensor, Tensor]:
    return (
        random(sum(Q_LENS), HEADS, DIM),
        random(sum(KV_LENS), KV_HEADS, DIM, seed=1),
        random(sum(KV_LENS), KV_HEADS, 12, seed=2),
    )


def packed_oracle(q: Tensor, k: Tensor, v: Tensor, *band: Any, **options: Any) -> Tensor:
    requests = zip(q.split(Q_LENS), k.split(KV_LENS), v.split(KV_LENS), strict=True)
    return torch.cat([oracle(*request, *band, **options) for request in requests])


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


def caches(lengths: list[int]) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Key and value cache, NaN where ``TABLE`` holds no token, and each request's keys and values."""
    keys, values = (
        [random(length, KV_HEADS, DIM, seed=10 * kind + i) for i, length in enumerate(lengths)]
        for kind in (1, 2)
    )
    stored = []
    for rows in (keys, values):
        cache = torch.full((7, BLOCK, KV_HEADS, DIM), float("nan"))
        for request, tokens in enumerate(rows):
            for position, token in enumerate(tokens):
                cache[int(TABLE[request, position // BLOCK]), position % BLOCK] = token
        stored.append(cache)
    return stored[0], stored[1], keys, values


@pytest.mark.parametrize(("queries", "layout", "mode"), [([1, 1], "BSND", 0), ([3, 1], "TND", 3)])
@pytest.mark.parametrize("used", [True, False])
def test_packed_queries_on_pages(used: bool, queries: list[int], layout: str, mode: int) -> None:
    lengths = [33, 5]
    key_cache, value_cache, keys, values = caches(lengths)
    query = random(sum(queries), HEADS, DIM)
    cu_q, cu_k = torch.tensor([0, queries[0], sum(queries)]), torch.tensor([0, 33, 38])
    longest = max(queries)

    def program(q: Tensor, k: Tensor, v: Tensor, table: Tensor, cu_q: Tensor, keys: Tensor) -> Tensor:
        counted = {"seqused_k": keys} if used else {}
        return ops.flash_attn._flash_attn_varlen_forward(
            q,
            k,
            v,
            cu_q,
            cu_q if used else keys,
            longest,
            48,
            0.0,
            DIM**-0.5,
            True,
            block_table=table,
            **counted,
        )[0]

    inputs = query, key_cache, value_cache, TABLE, cu_q, torch.tensor(lengths) if used else cu_k
    module, (outcome,) = translated(program, *inputs)
    wanted = [oracle(*one) for one in zip(query.split(queries), keys, values, strict=True)]
    close(module(*inputs), torch.cat(wanted))
    assert (outcome.input_layout, outcome.sparse_mode) == (layout, mode)


@pytest.mark.parametrize("hub", [True, False])
@pytest.mark.parametrize("new", [1, 3])
def test_new_keys_are_written_behind_the_others(new: int, hub: bool) -> None:
    lengths = [31, 5]
    key_cache, value_cache, keys, values = caches([length + new for length in lengths])
    wanted_caches = key_cache.clone(), value_cache.clone()
    old = caches(lengths)
    before_keys, before_values = (
        torch.where(torch.isnan(kept), kept, full) for kept, full in zip(old[:2], wanted_caches, strict=True)
    )
    added = [torch.stack([rows[-new:] for rows in kind]) for kind in (keys, values)]
    query = random(2, new, HEADS, DIM)

    def program(
        q: Tensor, k: Tensor, v: Tensor, kn: Tensor, vn: Tensor, used: Tensor, table: Tensor
    ) -> Tensor:
        if hub:
            none = (None,) * 4
            hub_call = ops._flash_attn2_0123abc.fwd_kvcache
            tail = (table, None, None, DIM**-0.5, True, -1, -1, 0.0, False, 0)
            return hub_call(q, k, v, kn, vn, used, *none, *tail)[0]
        return ops.flash_attn_3._flash_attn_forward(
            q, k, v, k_new=kn, v_new=vn, seqused_k=used, page_table=table, causal=True
        )[0]

    inputs = query, before_keys, before_values, *added, torch.tensor(lengths, dtype=torch.int32), TABLE
    module, (outcome,) = translated(program, *inputs)
    wanted = [oracle(*one) for one in zip(query, keys, values, strict=True)]
    close(module(*inputs), torch.stack(wanted))
    for got, full in zip((before_keys, before_values), wanted_caches, strict=True):
        torch.testing.assert_close(got, full, atol=0, rtol=0, equal_nan=True)
    assert outcome.input_layout == ("BSND" if new == 1 else "TND")


@pytest.mark.parametrize("queries", [1, 3])
def test_batch_with_lengths(queries: int) -> None:
    """A cache without pages; what is behind a request's keys is NaN."""
    q, k, v = random(2, queries, HEADS, DIM), random(2, 9, KV_HEADS, DIM, seed=1), random(2, 9, KV_HEADS, DIM)
    used = torch.tensor([4, 9])
    k[0, 4:], v[0, 4:] = float("nan"), float("nan")

    def program(q: Tensor, k: Tensor, v: Tensor, used: Tensor) -> Tensor:
        return ops.flash_attn_3._flash_attn_forward(q, k, v, seqused_k=used, causal=True)[0]

    module, _ = translated(program, q, k, v, used)
    wanted = [oracle(q[i], k[i, :n], v[i, :n]) for i, n in enumerate([4, 9])]
    close(module(q, k, v, used), torch.stack(wanted))


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
