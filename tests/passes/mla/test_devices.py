"""MLA for an NPU: pages, packed prefill, heads and what is refused; lowered on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from npu_compile.kernels.targets import Target
from tests.passes.mla.lowering import FIA, FIA_V2, calls, lowered, run
from tests.passes.mla.spellings import Q

DEVICE = Target.ASCEND910B


def real_inputs(
    queries: int,
    keys: int,
    latent: int = 512,
    rope: int = 64,
    heads: int = 3,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, ...]:
    """Meta tensors with the head dims of DeepSeek-V3: query, latent, rope, weight."""
    make = lambda *sizes: torch.empty(*sizes, dtype=dtype, device="meta")  # noqa: E731
    return (
        make(2, heads, queries, 128 + rope),
        make(2, keys, latent),
        make(2, keys, rope),
        make(heads * 256, latent),
    )


def real(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, 256).transpose(1, 2)
    key_nope, value = per_head.split([128, 128], -1)
    key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
    return F.scaled_dot_product_attention(query, key, value)


def real_causal(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
    batch, tokens, _ = latent.shape
    per_head = F.linear(latent, weight).view(batch, tokens, -1, 256).transpose(1, 2)
    key_nope, value = per_head.split([128, 128], -1)
    key = torch.cat([key_nope, rope.unsqueeze(1).expand(-1, key_nope.shape[1], -1, -1)], -1)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def shapes(call: fx.Node) -> dict[str, tuple[Any, ...]]:
    named = dict(zip(("query", "key", "value"), call.args, strict=True)) | dict(call.kwargs)
    return {name: tuple(n.meta["val"].shape) for name, n in named.items() if isinstance(n, fx.Node)}


@pytest.mark.parametrize(("keys", "block"), [(256, 128), (48, 16), (97, 16)])
def test_a_device_reads_latents_in_blocks_with_a_power_of_two_of_heads(keys: int, block: int) -> None:
    module, (outcome,) = lowered(real, *real_inputs(1, keys), target=DEVICE)
    (call,) = calls(module, FIA_V2)
    per_request = -(-keys // block)
    blocks = 2 * per_request
    assert shapes(call) == {
        "query": (2, 4, 1, 512),
        "key": (blocks, 1, block, 512),
        "value": (blocks, 1, block, 512),
        "query_rope": (2, 4, 1, 64),
        "key_rope": (blocks, 1, block, 64),
        "block_table": (2, per_request),
        "actual_seq_kvlen": (2,),
    }
    wanted = {"num_query_heads": 4, "num_key_value_heads": 1, "sparse_mode": 0, "block_size": block}
    assert {name: call.kwargs[name] for name in wanted} == wanted
    assert call.kwargs["softmax_scale"] == pytest.approx(192**-0.5)
    assert outcome.input_layout == "BNSD_NBSD" and "3 heads padded to 4" in outcome.notes


def test_a_static_cache_is_paged_without_a_copy() -> None:
    module, _ = lowered(real, *real_inputs(1, 256), target=DEVICE)
    (call,) = calls(module, FIA_V2)
    key = call.args[1].meta["val"]
    latent = next(n for n in module.graph.nodes if n.name.startswith("latent")).meta["val"]
    assert key.untyped_storage()._cdata == latent.untyped_storage()._cdata


def test_a_prefill_on_a_device_is_packed_with_the_rope_part_apart() -> None:
    module, (outcome,) = lowered(real_causal, *real_inputs(54, 54), target=DEVICE)
    (call,) = calls(module, FIA)
    assert shapes(call) == {
        "query": (108, 3, 128),
        "key": (108, 3, 128),
        "value": (108, 3, 128),
        "query_rope": (108, 3, 64),
        "key_rope": (108, 3, 64),
        "atten_mask": (2048, 2048),
        "actual_seq_lengths": (2,),
        "actual_seq_lengths_kv": (2,),
    }
    assert (outcome.input_layout, outcome.sparse_mode) == ("TND", 3)


def test_seventeen_tokens_are_more_than_a_device_absorbs() -> None:
    for queries, packet in ((16, FIA_V2), (17, FIA)):
        module, (outcome,) = lowered(real, *real_inputs(queries, 256), target=DEVICE, choice="absorb")
        assert len(calls(module, packet)) == 1
    assert any("17 query tokens" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("changed", "rule"),
    [({"latent": 256}, "512"), ({"rope": 32}, "64"), ({"heads": 129}, "128")],
)
def test_what_a_device_does_not_absorb_is_expanded_with_the_reason(
    changed: dict[str, int], rule: str
) -> None:
    _, (outcome,) = lowered(real, *real_inputs(1, 256, **changed), target=DEVICE)
    assert outcome.form == "mla" and outcome.op == "npu_fused_infer_attention_score"
    assert any(note.startswith("not absorb") and rule in note for note in outcome.notes)


def test_float32_on_a_device_is_left_with_the_reason() -> None:
    module, (outcome,) = lowered(real, *real_inputs(1, 256, dtype=torch.float32), target=DEVICE)
    assert outcome.op is None and "float32" in (outcome.reason or "")
    assert not calls(module, FIA) and not calls(module, FIA_V2)
    assert [n for n in module.graph.nodes if n.target is torch.ops.aten.scaled_dot_product_attention.default]


@pytest.mark.parametrize("queries", [1, 2, Q])
def test_what_is_emitted_for_a_device_computes_the_same(queries: int) -> None:
    """The CPU kernels run the same paged call with padded heads."""
    query, latent, rope, weight = (
        torch.randn(t.shape, dtype=torch.bfloat16) for t in real_inputs(queries, 97)
    )
    module, (outcome,) = lowered(real, query, latent, rope, weight / 8, target=DEVICE, choice="absorb")
    assert outcome.op == "npu_fused_infer_attention_score_v2"
    got = run(module, query, latent, rope, weight / 8)
    wanted = real(*(t.double() for t in (query, latent, rope, weight / 8)))
    plain = (real(query, latent, rope, weight / 8).double() - wanted).abs().max()
    assert (got.double() - wanted).abs().max() <= 2 * plain


def test_layers_share_lengths_and_block_table() -> None:
    def layers(query: Tensor, latent: Tensor, rope: Tensor, weight: Tensor) -> Tensor:
        for _ in range(3):
            query = F.pad(real(query, latent, rope, weight), (0, 64))
        return query

    module, _ = lowered(layers, *real_inputs(1, 256), target=DEVICE)
    found = calls(module, FIA_V2)
    assert len(found) == 3
    for name in ("block_table", "actual_seq_kvlen"):
        assert len({call.kwargs[name] for call in found}) == 1
