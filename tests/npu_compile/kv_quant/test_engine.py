"""generate_batch with keys and values in int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import npu_compile.hf
from npu_compile.errors import AscendFiaError
from npu_compile.hf.kv_views import Antiquant, PagedKV
from npu_compile.hf.packed import attend_paged
from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.kv_quant import Int8KV, Int8StaticCache, KVScales, LayerScales, calibrate_kv
from npu_compile.kv_quant.int8 import nz_pages
from tests.npu_compile.hf.drive import Engine, Recorder
from tests.npu_compile.hf.models import batched, build, prompts, sequential
from tests.npu_compile.hf.oracle import attend_request

npu_compile.hf.register()

ENGINE = {"page_size": 32, "num_blocks": 30, "max_batch_tokens": 64}


def calibrated(model: Any, requests: list[list[int]]) -> KVScales:
    return calibrate_kv(model, [torch.tensor([r]) for r in requests], progress=False)


def run(model: Any, requests: list[list[int]], int8: Int8KV | None, **engine: int) -> list[list[int]]:
    npu_compile.hf.use_int8_cache(model, int8)
    return batched(model, requests, 6, **{**ENGINE, **engine})


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("per_token", [False, True])
def test_most_tokens_are_those_of_a_real_cache(family: str, per_token: bool) -> None:
    """Random models decide between near-equal logits, so some tokens do differ."""
    model, requests = build(family), prompts(12, 200)
    int8 = Int8KV(None if per_token else calibrated(model, requests))
    got, wanted = run(model, requests, int8), sequential(model, requests, 6)
    first = [a[0] == b[0] for a, b in zip(got, wanted, strict=True)]
    equal = [x == y for a, b in zip(got, wanted, strict=True) for x, y in zip(a, b, strict=True)]
    assert sum(first) >= 11
    assert sum(equal) / len(equal) >= 0.85


def test_nz_pages_give_the_same_tokens() -> None:
    model, requests = build("qwen3"), prompts(12, 200)
    scales = calibrated(model, requests)
    assert run(model, requests, Int8KV(scales, "nz")) == run(model, requests, Int8KV(scales, "nd"))


def logits_of(model: Any, requests: list[list[int]], int8: Int8KV | None) -> tuple[list[Tensor], Any]:
    """Logits of every step, and the cache."""
    npu_compile.hf.use_int8_cache(model, int8)
    engine = Engine(model, requests, 4, page_size=32, num_blocks=64, max_batch_tokens=2000)
    steps: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda *call: steps.append(call[2].clone()))
    engine.run()
    hook.remove()
    return steps, engine.cache


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("per_token", [False, True])
def test_logits_keep_their_direction(family: str, per_token: bool) -> None:
    """In the first decode step, whose input tokens are the same with both caches."""
    model, requests = build(family), prompts(6, 200)
    int8 = Int8KV(None if per_token else calibrated(model, requests))
    wanted, got = logits_of(model, requests, None)[0][1], logits_of(model, requests, int8)[0][1]
    assert not torch.equal(got, wanted)
    assert torch.nn.functional.cosine_similarity(got, wanted, -1).min() >= 0.999


def test_what_is_stored_is_within_half_a_step() -> None:
    model, requests = build("llama"), prompts(6, 200)
    scales = calibrated(model, requests)
    real, int8 = (logits_of(model, requests, kind)[1] for kind in (None, Int8KV(scales)))
    for kind, scale in enumerate((scales.layers[0].key, scales.layers[0].value)):
        wanted = real.layer_to_allocator[0].get_cache_for_block_table(0)[kind]
        stored = int8.layer_to_allocator[0].get_cache_for_block_table(0)[kind]
        error = (stored.double() * scale.transpose(0, 1).double() - wanted.double()).abs()
        # Tokens of the prompts: later ones follow from attention that is itself approximate.
        slots = [slot for row in _prompt_slots(requests, 32) for slot in row]
        assert len(slots) == sum(map(len, requests))
        bound = scale.transpose(0, 1).double() / 2 * (1 + 1e-6)
        assert (error.flatten(0, 1)[slots] <= bound).all()


def _prompt_slots(requests: list[list[int]], page: int) -> list[list[int]]:
    """Blocks are handed out from the last one down, in the order in which the engine takes requests."""
    order = sorted(range(len(requests)), key=lambda i: requests[i], reverse=True)
    block, rows = 65, []
    for index in order:
        count = -(-len(requests[index]) // page)
        blocks = [block - i for i in range(count)]
        block -= count
        rows.append([blocks[t // page] * 4 * page + t % page for t in range(len(requests[index]))])
    return rows


def test_memory_is_half_of_bfloat16() -> None:
    model = build("llama", dtype=torch.bfloat16)
    sizes = {}
    for name, int8 in (("real", None), ("int8", Int8KV())):
        cache = logits_of(model, [[5, 6, 7]], int8)[1]
        sizes[name] = cache.cache_tensor.numel() / (cache.num_sectors + 2) / cache.tokens_per_sector
    assert sizes == {"real": 2 * 2 * 2 * 16 * 2, "int8": 2 * 2 * 2 * 16}


@pytest.mark.parametrize("nz", [False, True])
def test_decode_against_dequantised_keys(nz: bool) -> None:
    heads, kv_heads, dim, lengths = 4, 2, 64, [33, 5, 64]
    generator = torch.Generator().manual_seed(0)
    stored = [
        torch.randint(-128, 128, (6, 32, kv_heads, dim), generator=generator).to(torch.int8) for _ in "kv"
    ]
    scale = [torch.rand(kv_heads, 1, dim, generator=generator) / 40 + 0.01 for _ in "kv"]
    table = torch.tensor([[4, 1], [2, 0], [5, 3]], dtype=torch.int32)
    query = torch.randn(3, heads, dim, generator=generator)
    pages = [s.clone() for s in stored]
    if nz:
        for page, rows in zip(pages, stored, strict=True):
            tiles = nz_pages(page)
            for token in range(32):
                tiles[:, :, :, token] = rows[:, token].view(6, kv_heads, dim // 32, 32)
    view = PagedKV(
        pages[0],
        pages[1],
        table,
        torch.arange(1, 4),
        torch.tensor(lengths),
        True,
        Antiquant(0, scale[0], scale[1], nz),
    )
    with Recorder() as recorder:
        got = attend_paged(query, view, 0.1, None, torch.empty(0))
    for request, length in enumerate(lengths):
        rows = [s[table[request].long()].flatten(0, 1)[:length] for s in stored]
        keys, values = (r.double() * s.transpose(0, 1).double() for r, s in zip(rows, scale, strict=True))
        wanted = attend_request(query[request : request + 1], keys, values, 0.1)
        torch.testing.assert_close(got[request : request + 1].double(), wanted, atol=1e-5, rtol=1e-5)
    ((arguments, named),) = recorder.named("ascend_fia.npu_fused")
    call = {"query": arguments[0], "key": arguments[1], "value": arguments[2], **named}
    real = ("query", "key_antiquant_scale", "value_antiquant_scale")
    call |= {name: call[name].bfloat16() for name in real}
    assert check("npu_fused_infer_attention_score", call, Target.ASCEND910B) == []


def test_static_cache_generates() -> None:
    """Nearly what a cache in the model's dtype generates."""
    model, requests = build("llama", "eager"), prompts(6, 60)
    scales = calibrated(model, requests)
    tokens = torch.tensor([requests[4]])
    real = model.generate(tokens, max_new_tokens=8, do_sample=False)
    cache = Int8StaticCache(model.config, 100, scales)
    got = model.generate(tokens, max_new_tokens=8, do_sample=False, cache=cache, disable_compile=True)
    assert {layer.keys.dtype for layer in cache.layers} == {torch.int8}
    assert (got == real).double().mean() > 0.95


class TestErrors:
    def test_latents(self) -> None:
        with pytest.raises(AscendFiaError, match="deepseek_v3 caches latents"):
            npu_compile.hf.use_int8_cache(build("deepseek_v3"), Int8KV())

    def test_scales_of_another_model(self) -> None:
        layer = LayerScales(torch.ones(2, 1, 16), torch.ones(2, 1, 16))
        with pytest.raises(AscendFiaError, match=r"3 layers.*the model has 2 layers"):
            npu_compile.hf.use_int8_cache(build("llama"), Int8KV(KVScales((layer,) * 3)))
        with pytest.raises(AscendFiaError, match=r"layers\[0\].*\(2, 1, 16\).*\(2, 1, 32\)"):
            npu_compile.hf.use_int8_cache(build("qwen3"), Int8KV(KVScales((layer,) * 2)))

    def test_page_size(self) -> None:
        model = build("llama")
        npu_compile.hf.use_int8_cache(model, Int8KV())
        with pytest.raises(AscendFiaError, match="page_size=16: the operator takes multiples of 32"):
            Engine(model, [[5]], 1, page_size=16, num_blocks=4, max_batch_tokens=16)

    def test_nz_needs_whole_tiles(self) -> None:
        model, requests = build("llama"), prompts(2, 20)
        npu_compile.hf.use_int8_cache(model, Int8KV(calibrated(model, requests), "nz"))
        with pytest.raises(AscendFiaError, match=r"layout='nz'.*\[16\] have to be multiples of 32"):
            Engine(model, [[5]], 1, page_size=32, num_blocks=4, max_batch_tokens=16)
