"""generate_batch with keys and values in int8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import npu_compile.hf
from npu_compile.cache_argument import cache_argument
from npu_compile.errors import AscendFiaError
from npu_compile.hf.kv_views import Antiquant, PagedKV
from npu_compile.hf.packed import attend_paged
from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.kv_quant import Int8KV, Int8StaticCache, KVScales, LayerScales, calibrate_kv
from npu_compile.kv_quant.int8 import nz_pages
from tests.npu_compile.hf.drive import Engine, Recorder
from tests.npu_compile.hf.models import batched, build, prompts
from tests.npu_compile.hf.oracle import attend_request

npu_compile.hf.register()

ENGINE = {"page_size": 32, "num_blocks": 30, "max_batch_tokens": 64}


def calibrated(model: Any, requests: list[list[int]]) -> KVScales:
    return calibrate_kv(model, [torch.tensor([r]) for r in requests], progress=False)


def run(model: Any, requests: list[list[int]], int8: Int8KV | None, **engine: int) -> list[list[int]]:
    npu_compile.hf.use_int8_cache(model, int8)
    return batched(model, requests, 6, **{**ENGINE, **engine})


def test_nz_pages_give_the_same_tokens() -> None:
    model, requests = build("qwen3"), prompts(12, 200)
    scales = calibrated(model, requests)
    assert run(model, requests, Int8KV(scales, "nz")) == run(model, requests, Int8KV(scales, "nd"))


def logits_of(
    model: Any, requests: list[list[int]], int8: Int8KV | None, **engine: int
) -> tuple[list[list[Tensor]], list[list[int]], Any]:
    """For each request the logits that chose each token, and the tokens; the cache."""
    npu_compile.hf.use_int8_cache(model, int8)
    running = Engine(model, requests, 6, **{**ENGINE, **engine})
    found: dict[str, list[Tensor]] = {name: [] for name in running.ids}
    seen: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda *call: seen.append(call[2][0].clone()))
    for step in running.steps():
        inputs = running.processor.inputs_and_outputs
        choosing = [f.state.request_id for f in inputs.requests_in_batch if f.has_new_token]
        step()
        # Rows behind them are of requests in the middle of their prompt.
        for name, row in zip(choosing, seen.pop(), strict=False):
            found[name].append(row)
    hook.remove()
    return [found[name] for name in running.ids], running.results(), running.cache


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("per_token", [False, True])
def test_logits_keep_their_direction(family: str, per_token: bool) -> None:
    """At every step whose input tokens are those of a real cache. Where two logits are nearly equal, a token
    may then differ, after which the requests aren't comparable."""
    model, requests = build(family), prompts(12, 200)
    int8 = Int8KV(None if per_token else calibrated(model, requests))
    wanted, got = logits_of(model, requests, None), logits_of(model, requests, int8)
    compared, differing = 0, 0
    for real, tokens, quantised, others in zip(*wanted[:2], *got[:2], strict=True):
        for step, (a, b) in enumerate(zip(real, quantised, strict=True)):
            assert torch.nn.functional.cosine_similarity(a, b, 0) >= 0.999
            compared += 1
            differing += not torch.equal(a, b)
            if tokens[step] != others[step]:
                break
    assert compared >= 48
    assert differing >= 36


def test_what_is_stored_is_within_half_a_step() -> None:
    model, requests = build("llama"), prompts(6, 200)
    scales = calibrated(model, requests)
    room = {"num_blocks": 64, "max_batch_tokens": 2000}
    real, int8 = (logits_of(model, requests, kind, **room)[2] for kind in (None, Int8KV(scales)))
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


@pytest.mark.parametrize("kind", ["per token", "nz", pytest.param("nd", marks=pytest.mark.nightly)])
def test_padding_rows_of_captured_steps_write_nothing(kind: str) -> None:
    """Five requests in a graph for eight: memory of no request stays as it was, and so do others' scales.
    The tokens are those of uncaptured steps."""
    model, requests = build("qwen3"), prompts(5, 60)
    int8 = Int8KV() if kind == "per token" else Int8KV(calibrated(model, requests), kind)  # type: ignore[arg-type]
    wanted = run(model, requests, int8)
    torch._dynamo.reset()
    compiled = hf.CompileConfig(backend="ascend_fia")
    engine = Engine(model, requests, 6, **ENGINE, max_requests_per_batch=8, decode_compile_config=compiled)
    cache, steps = engine.cache, 0
    if kind == "per token":
        scales = cache.pages.antiquant(0).key_scale._base.fill_(float("nan"))
    for step in engine.steps():
        before = int(scales.isnan().sum()) if kind == "per token" else 0
        padded = engine.decoding and engine.processor.inputs_and_outputs.num_request_in_batch == 5
        step()
        steps += padded
        if padded and kind == "per token":
            assert before - int(scales.isnan().sum()) == 5 * 2 * 2
        assert not cache.cache_tensor[: 2 * cache.bytes_per_sector].any()
    assert steps >= 3
    assert engine.results() == wanted


def test_memory_is_half_of_bfloat16() -> None:
    model = build("llama", dtype=torch.bfloat16)
    sizes = {}
    for name, int8 in (("real", None), ("int8", Int8KV())):
        cache = logits_of(model, [[5, 6, 7]], int8)[2]
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


def test_static_cache() -> None:
    """A prompt and each token after it, as ``generate`` makes them, against a cache in the model's dtype."""
    model, requests = build("llama", "eager"), prompts(6, 60)
    cache = Int8StaticCache(model.config, 100, calibrated(model, requests))
    prompt = torch.tensor([requests[4]])
    arguments = {
        "max_new_tokens": 8,
        "do_sample": False,
        "disable_compile": True,
        "return_dict_in_generate": True,
    }
    got = model.generate(prompt, **arguments, output_logits=True, **{cache_argument(model.forward): cache})
    assert {layer.keys.dtype for layer in cache.layers} == {torch.int8}
    with torch.no_grad():
        wanted = model(got.sequences).logits[0, prompt.shape[1] - 1 : -1]
    assert len(got.logits) == len(wanted) == 8
    for one, other in zip(got.logits, wanted, strict=True):
        assert torch.nn.functional.cosine_similarity(one[0], other, 0) >= 0.999
        assert not torch.equal(one[0], other)


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
