"""Loops over pieces of a sequence: one packed call, the same numbers; what only looks like one stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, fx

import npu_compile
from npu_compile.kernels.targets import Target
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.verify import verify
from npu_compile.pipeline import run_passes
from tests.passes.graphs import random

N, KV, D, DV = 6, 3, 16, 24
LENGTHS = [17, 1, 54]
T = sum(LENGTHS)


def qkv(dtype: torch.dtype = torch.float32, width: int = D, kv_heads: int = KV) -> tuple[Tensor, ...]:
    """(1, N, T, D) as transposed views of (1, T, N, D), which is how models make them."""
    return (
        random(1, T, N, width, dtype=dtype).transpose(1, 2),
        random(1, T, kv_heads, width, seed=1, dtype=dtype).transpose(1, 2),
        random(1, T, kv_heads, width + DV - D, seed=2, dtype=dtype).transpose(1, 2),
    )


def oracle(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """(1, T, N, D_v) float64: each piece by itself."""
    k, v = (x.double().repeat_interleave(N // x.shape[1], 1) for x in (k, v))
    out, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        scores = torch.einsum("bnqd,bnkd->bnqk", q[:, :, part].double(), k[:, :, part]) * scale
        out.append(torch.einsum("bnqk,bnkd->bqnd", scores.softmax(-1), v[:, :, part]))
        start += length
    return torch.cat(out, 1)


def passed(
    function: Callable[..., Any], *inputs: Any, target: Target = Target.CPU, run: bool = True, **options: Any
) -> tuple[Any, fx.GraphModule, tuple[SiteOutcome, ...]]:
    found = []

    def backend(module: fx.GraphModule, examples: Any) -> Any:
        found.append(run_passes(module, examples, target))
        verify(found[-1].module.graph)
        return found[-1].module.forward if run else module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        out = torch.compile(function, backend=backend, fullgraph=True, **options)(*inputs)
    (one,) = found
    return out, one.module, one.outcomes


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if "npu_fused_infer" in str(n.target)]


def in_pieces(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int] = LENGTHS, **options: Any) -> Tensor:
    """The loop of Hugging Face's vision encoders."""
    parts = (torch.split(x, lengths, dim=2) for x in (q, k, v))
    out = [
        F.scaled_dot_product_attention(*piece, enable_gqa=True, **options).transpose(1, 2).contiguous()
        for piece in zip(*parts, strict=True)
    ]
    return torch.cat(out, dim=1)


def test_one_call_reads_what_was_split() -> None:
    out, module, outcomes = passed(in_pieces, *qkv())
    torch.testing.assert_close(out.double(), oracle(*qkv(), LENGTHS, D**-0.5), atol=1e-5, rtol=0)
    (call,) = calls(module)
    assert call.kwargs["input_layout"] == "TND" and call.kwargs["num_key_value_heads"] == KV
    assert not any("split" in str(n.target) for n in module.graph.nodes)
    assert len(outcomes) == len(LENGTHS) and all(o.input_layout == "TND" for o in outcomes)
    assert outcomes[0].notes == ("one call for 3 pieces",)


def test_heads_first_results() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(torch.split(x, LENGTHS, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*p, scale=0.3, enable_gqa=True) for p in parts], 2)

    out, module, _ = passed(attend, *qkv())
    expected = oracle(*qkv(), LENGTHS, 0.3).transpose(1, 2)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
    assert len(calls(module)) == 1


def test_soft_capped_pieces_keep_their_cap() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(torch.split(x, LENGTHS, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([(torch.tanh(q @ k.mT) * 2.0).softmax(-1) @ v for q, k, v in parts], 2)

    inputs = qkv(kv_heads=N)
    out, module, outcomes = passed(attend, *inputs)
    assert [outcome.op for outcome in outcomes] == ["softcap_attention"] * len(LENGTHS)
    expected = [
        torch.softmax(2 * torch.tanh(q.double() @ k.double().mT), -1) @ v.double()
        for q, k, v in zip(*(torch.split(x, LENGTHS, dim=2) for x in inputs), strict=True)
    ]
    torch.testing.assert_close(out.double(), torch.cat(expected, 2), atol=1e-5, rtol=0)
    assert not calls(module)


def test_pieces_that_come_apart_are_put_together() -> None:
    """After a graph break the pieces are inputs of the graph; their lengths are symbols in the end."""

    def attend(*pieces: Tensor) -> Tensor:
        out = [
            F.scaled_dot_product_attention(*pieces[3 * i : 3 * i + 3], enable_gqa=True).transpose(1, 2)
            for i in range(2)
        ]
        return torch.cat(out, dim=1)

    torch._dynamo.reset()
    run = torch.compile(attend, backend="ascend_fia")
    for lengths in ([7, 11], [5, 20], [33, 2]):
        q, k, v = (x[:, :, : sum(lengths)] for x in qkv())
        parts = zip(*(torch.split(x, lengths, dim=2) for x in (q, k, v)), strict=True)
        with torch.no_grad():
            out = run(*(x for part in parts for x in part))
        torch.testing.assert_close(out.double(), oracle(q, k, v, lengths, D**-0.5), atol=1e-5, rtol=0)
    assert {site.input_layout for site in npu_compile.last_report().sites} == {"TND"}


def test_lengths_that_only_the_run_knows() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
        lengths = (ends[1:] - ends[:-1]).tolist()
        for length in lengths:
            torch._check(length >= 0)
            torch._check(length <= T)
        return in_pieces(q, k, v, lengths)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        run = torch.compile(attend, backend="ascend_fia")
        for lengths in (LENGTHS, [20, 40, 12]):
            ends = torch.tensor([0, *lengths]).cumsum(0)
            out = run(*qkv(), ends)
            torch.testing.assert_close(out.double(), oracle(*qkv(), lengths, D**-0.5), atol=1e-5, rtol=0)


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return in_pieces(q, k, v, is_causal=True)


def _reordered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A piece of other keys than its queries' own: right all the same."""
    parts = [torch.split(x, [36, 36], dim=2) for x in (q, k, v)]
    out = [
        F.scaled_dot_product_attention(parts[0][i], parts[1][1 - i], parts[2][1 - i], enable_gqa=True)
        for i in range(2)
    ]
    return torch.cat(out, 2)


def _used_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = zip(*(torch.split(x, LENGTHS, dim=2) for x in (q, k, v)), strict=True)
    out = [F.scaled_dot_product_attention(*p, enable_gqa=True) for p in parts]
    return torch.cat(out, 2) + out[1]


def _along_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = zip(*(x.chunk(3, dim=1) for x in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*p, enable_gqa=True) for p in parts], 1)


def _two_scales(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    parts = zip(*(torch.split(x, [36, 36], dim=2) for x in (q, k, v)), strict=True)
    scales = (0.1, 0.2)
    out = [
        F.scaled_dot_product_attention(*p, scale=s, enable_gqa=True)
        for p, s in zip(parts, scales, strict=True)
    ]
    return torch.cat(out, 2)


def _overwritten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    k.mul_(2)
    return torch.cat([first, F.scaled_dot_product_attention(q, k, v, enable_gqa=True)], 2)


@pytest.mark.parametrize(
    ("function", "packed"),
    [
        (_masked, 0),
        (_reordered, 1),
        (_used_twice, 0),
        (_along_heads, 0),
        (_two_scales, 0),
        (_overwritten, 0),
    ],
)
def test_others_are_right(function: Callable[..., Any], packed: int) -> None:
    expected = function(*(x.double() for x in qkv()))
    out, module, _ = passed(function, *qkv())
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)
    assert sum(call.kwargs["input_layout"] == "TND" for call in calls(module)) == packed


@pytest.mark.parametrize(
    ("width", "kv_heads", "filled"), [(80, N, 128), (64, N, 64), (64, KV, 128), (128, KV, 128)]
)
def test_devices_take_some_head_dims_only(width: int, kv_heads: int, filled: int) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return in_pieces(q, k, v[..., :width], scale=0.1)

    inputs = qkv(torch.bfloat16, width, kv_heads)
    out, module, _ = passed(attend, *inputs, target=Target.ASCEND910B)
    (call,) = calls(module)
    assert [a.meta["val"].shape for a in call.args] == [(T, n, filled) for n in (N, kv_heads, kv_heads)]
    assert all(a.meta["val"].is_contiguous() for a in call.args) and call.kwargs["scale"] == 0.1
    exact = oracle(inputs[0], inputs[1], inputs[2][..., :width], LENGTHS, 0.1)
    plain = attend(*inputs).double()
    assert (out.double() - exact).abs().max() <= 2 * (plain - exact).abs().max()


def test_a_head_dim_that_no_packed_call_takes_stays_in_pieces() -> None:
    inputs = qkv(torch.float16, 256, N)
    _, module, outcomes = passed(
        lambda q, k, v: in_pieces(q, k, v[..., :256]), *inputs, target=Target.ASCEND910B, run=False
    )
    assert len(calls(module)) == len(LENGTHS) == sum(outcome.lowered for outcome in outcomes)


VISION = {"depth": 2, "num_heads": 4, "hidden_size": 64}


def _qwen2_vl() -> Any:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as models

    config = hf.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(
        embed_dim=64, mlp_ratio=2, **VISION
    )
    return models.Qwen2VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa")


def _qwen2_5_vl() -> Any:
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as models

    config = hf.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(
        out_hidden_size=64, intermediate_size=64, fullatt_block_indexes=[1], window_size=56, **VISION
    )
    return models.Qwen2_5_VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa")


@pytest.mark.parametrize("build", [_qwen2_vl, _qwen2_5_vl])
def test_vision_encoders(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    config = model.config
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    torch._dynamo.reset()
    run = torch.compile(model, backend="ascend_fia")
    for grid in ([[1, 4, 6], [1, 8, 4]], [[1, 8, 6], [2, 4, 4]]):
        sizes = torch.tensor(grid)
        pixels = random(int(sizes.prod(-1).sum()), width)
        with torch.no_grad():
            expected, got = model(pixels, sizes)[0], run(pixels, sizes)[0]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    sites = npu_compile.last_report().sites
    assert all(site.lowered for site in sites) and "TND" in {site.input_layout for site in sites}
