"""npu_mla_prolog_v3 and its functional form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle import caches
from tests.kernels.oracle.compare import assert_close, assert_rounded
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.mla import Prolog
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu
HIDDEN, LATENT_QUERY, DIM, ROPE, TILE = 24, 16, 8, 32, 32
SCALE_NAMES = {
    "dq": "dequant_scale_w_dq",
    "uq_qr": "dequant_scale_w_uq_qr",
    "dkv_kr": "dequant_scale_w_dkv_kr",
}


class Weights:
    """Matrices as the operator stores them and as real numbers."""

    def __init__(self, draw: Draw, dtype: torch.dtype) -> None:
        self.draw = draw
        self.dtype = dtype
        self.options: dict[str, Tensor] = {}

    def of(self, name: str, rows: int, columns: int, quantised: bool) -> tuple[Tensor, Tensor]:
        if not quantised:
            stored = self.draw.normal(rows, columns).mul(rows**-0.5).to(self.dtype)
            return stored, stored.double()
        stored = self.draw.integers(rows, columns, low=-127, high=128, dtype=torch.int8)
        scale = self.draw.uniform(1, columns, low=0.002, high=0.01)
        self.options[SCALE_NAMES[name]] = scale
        return stored, stored.double() * scale.double()


def call_of(draw: Draw) -> dict[str, Any]:
    mode, cache_quant, nz = draw.size(0, 2), draw.size(0, 3), draw.maybe()
    heads, latent = draw.size(1, 3), 2 * TILE
    dtype = draw.one_of(torch.float32, torch.float32, torch.bfloat16, torch.float16)
    if mode == 2:
        dtype = torch.bfloat16
    lead = (draw.size(0, 5),) if draw.maybe() else (draw.size(1, 2), draw.size(1, 3))
    tokens = torch.Size(lead).numel()
    weights = Weights(draw, dtype)
    dq, real_dq = weights.of("dq", HIDDEN, LATENT_QUERY, mode == 2)
    uq, real_uq = weights.of("uq_qr", LATENT_QUERY, heads * (DIM + ROPE), mode > 0)
    dkv, real_dkv = weights.of("dkv_kr", HIDDEN, latent + ROPE, mode == 2)
    uk = draw.normal(heads, DIM, latent, dtype=dtype)
    x = draw.normal(tokens, HIDDEN, dtype=dtype)
    real_x = x.double()
    options: dict[str, Any] = dict(weights.options)
    if mode == 2:
        x = draw.integers(tokens, HIDDEN, low=-127, high=128, dtype=torch.int8)
        options["dequant_scale_x"] = draw.uniform(tokens, 1, low=0.005, high=0.02)
        real_x = x.double() * options["dequant_scale_x"].double()
    if mode and draw.maybe():
        options["smooth_scales_cq"] = draw.uniform(1, LATENT_QUERY, low=0.5, high=2.0)
    if cache_quant in (1, 2):
        options["quant_scale_ckv"] = draw.uniform(1, 1 if cache_quant == 1 else latent, low=10.0, high=40.0)
    if cache_quant == 2:
        options["quant_scale_ckr"] = draw.uniform(1, ROPE, low=10.0, high=40.0)
    gammas = draw.normal(LATENT_QUERY, dtype=dtype), draw.normal(latent, dtype=dtype)
    sin, cos = (draw.uniform(tokens, ROPE, low=-1.0).to(dtype) for _ in range(2))
    block_size = 16
    blocks = -(-tokens // block_size) + 1
    row = latent + ROPE * 2 + latent // TILE * 4 if cache_quant == 3 else latent
    nz = nz and row % 32 == 0
    kinds = [(row, cache_quant > 0), (ROPE, cache_quant == 2)]
    stored = [
        torch.full((blocks, block_size, 1, size), 77, dtype=torch.int8 if is_int8 else dtype)
        for size, is_int8 in kinds
    ]
    options |= {
        "cache_index": draw.distinct(tokens, blocks * block_size).view(lead),
        "cache_mode": "PA_NZ" if nz else "PA_BSND",
        "weight_quant_mode": mode,
        "kv_cache_quant_mode": cache_quant,
        "tile_size": TILE,
        "query_norm_flag": draw.maybe(),
        "rmsnorm_epsilon_cq": draw.one_of(1e-5, 0.1),
        "rmsnorm_epsilon_ckv": draw.one_of(1e-5, 0.1),
        "qc_qr_scale": draw.one_of(1.0, 2.5),
        "kc_scale": draw.one_of(1.0, 0.7),
    }
    scalars = ("rmsnorm_epsilon_cq", "rmsnorm_epsilon_ckv", "qc_qr_scale", "kc_scale")
    oracle = Prolog(
        real_x,
        real_dq,
        real_uq,
        uk.double(),
        real_dkv,
        *gammas,
        cos,
        sin,
        *(options[name] for name in scalars),
    )
    angles = [t.view(*lead, ROPE) for t in (sin, cos)]
    args = [x.view(*lead, HIDDEN), dq, uq, uk, dkv, *gammas, *angles]
    return {"args": args, "caches": stored, "options": options, "oracle": oracle, "dtype": dtype}


def rows_of(cache: Tensor, slots: Tensor, nz: bool) -> Tensor:
    """The rows (T, D) at ``slots``, and every other one still as it was."""
    blocks, block_size, _, dim = cache.shape
    width = 32 // cache.element_size()
    memory = cache.flatten().view(blocks, dim // width, block_size, width) if nz else cache
    every = [caches.at(memory, slot, 1, nz)[0] for slot in range(blocks * block_size)]
    owned = set(slots.tolist())
    for slot, row in enumerate(every):
        assert slot in owned or (row == 77).all(), f"slot {slot} was written, no token goes there"
    return torch.stack([every[slot] for slot in slots.tolist()]) if owned else cache.new_empty(0, dim)


def assert_dynamic(stored: Tensor, scale: Tensor, real: Tensor, what: str) -> None:
    """int8 rows with the scale that makes their largest magnitude 127."""
    wanted = real.abs().amax(-1, keepdim=True) / 127
    assert_close(scale, wanted, what=f"scale of {what}")
    assert_rounded(stored, real / scale.double().clamp(min=1e-30), what)


def check_queries(
    call: dict[str, Any], results: tuple[Tensor, ...], norm: Tensor, norm_scale: Tensor
) -> None:
    """``norm`` and its scale are those of a call that returned them."""
    options, oracle, dtype = call["options"], call["oracle"], call["dtype"]
    query, query_rope, query_scale, got_norm, got_scale = results
    latent_query = oracle.latent_query()
    flat_norm = norm.reshape(latent_query.shape)
    if options["weight_quant_mode"]:
        smooth = options.get("smooth_scales_cq", torch.ones(1)).double()
        assert_dynamic(flat_norm, norm_scale, latent_query * smooth, "query_norm")
        latent_query = flat_norm.double() * norm_scale.double()
    else:
        assert_close(flat_norm, latent_query, latent_query.to(dtype), "query_norm")
    if options["query_norm_flag"]:
        assert torch.equal(got_norm, norm) and torch.equal(got_scale, norm_scale)
    else:
        assert got_norm.shape == got_scale.shape == (0,)
    want, want_rope = oracle.queries(latent_query)
    lead = call["args"][0].shape[:-1]
    assert query.shape[:-2] == query_rope.shape[:-2] == lead
    if query.dtype == torch.int8:
        assert options["weight_quant_mode"] == 2 and options["kv_cache_quant_mode"] == 1
        assert_dynamic(query.reshape(want.shape), query_scale, want, "query")
        want_rope = want_rope * options["quant_scale_ckv"].double() / query_scale.double()
    else:
        assert query.dtype == dtype and query_scale.shape == (0,)
        assert_close(query.reshape(want.shape), want, want.to(dtype), "query")
    assert_close(query_rope.reshape(want_rope.shape), want_rope, want_rope.to(dtype), "query_rope")


def check_caches(call: dict[str, Any]) -> None:
    options, dtype = call["options"], call["dtype"]
    want, want_rope = call["oracle"].keys()
    slots, nz = options["cache_index"].flatten(), options["cache_mode"] == "PA_NZ"
    mode = options["kv_cache_quant_mode"]
    row = rows_of(call["caches"][0], slots, nz)
    if mode == 3:
        latent = want.shape[1]
        ends = latent, latent + 2 * ROPE
        scales = row[:, ends[1] :].contiguous().view(torch.float32)
        tiles = want.unflatten(-1, (-1, TILE))
        assert_dynamic(row[:, : ends[0]].unflatten(-1, (-1, TILE)), scales.unsqueeze(-1), tiles, "tiles")
        rope = row[:, ends[0] : ends[1]].contiguous().view(torch.bfloat16)
        assert_close(rope, want_rope, want_rope.bfloat16(), "rope part of the row")
        assert (call["caches"][1] == 77).all(), "the rope part is in the row"
        return
    rope = rows_of(call["caches"][1], slots, nz)
    if mode == 0:
        assert_close(row, want, want.to(dtype), "kv_cache")
    else:
        assert_rounded(row, want * options["quant_scale_ckv"].double(), "kv_cache")
    if mode == 2:
        assert_rounded(rope, want_rope * options["quant_scale_ckr"].double(), "kr_cache")
    else:
        assert_close(rope, want_rope, want_rope.to(dtype), "kr_cache")


@EXAMPLES
def test_queries_and_caches_are_the_projections(examples: int) -> None:
    def check(call: dict[str, Any]) -> None:
        args, stored = call["args"], call["caches"]
        copies = [cache.clone() for cache in stored]
        with_norm = call["options"] | {"query_norm_flag": True}
        functional = npu.npu_mla_prolog_v3_functional(*args, *copies, **with_norm)
        assert all((cache == 77).all() for cache in copies), "the functional form wrote to its arguments"
        results = npu.npu_mla_prolog_v3(*args, *stored, **call["options"])
        check_queries(call, results, *functional[3:5])
        check_caches(call)
        for mine, theirs in zip((*results[:3], *stored), (*functional[:3], *functional[5:]), strict=True):
            assert torch.equal(mine, theirs)

    for_all(calls(call_of), examples, check)


def small_call(**changes: Any) -> tuple[list[Tensor], dict[str, Any]]:
    """Two tokens, one head; the caches are the last two arguments."""
    ones = torch.ones
    weights = [ones(8, 4), ones(4, 8), ones(1, 4, 16), ones(8, 20), ones(4), ones(16)]
    stored = [torch.zeros(1, 16, 1, 16), torch.zeros(1, 16, 1, 4)]
    args = [ones(2, 8), *weights, ones(2, 4), ones(2, 4), *stored]
    return args, {"cache_index": torch.tensor([0, 1])} | changes


REFUSALS = [
    ({"cache_index": torch.tensor([0, 16])}, "cache_index"),
    ({"cache_index": torch.tensor([3, 3])}, "cache_index"),
    ({"cache_index": torch.tensor([-1, 3])}, "cache_index"),
    ({"cache_mode": "BSND"}, "cache_mode"),
    ({"kv_cache_quant_mode": 1}, "quant_scale_ckv"),
    ({"kv_cache_quant_mode": 4}, "kv_cache_quant_mode"),
    ({"kv_cache_quant_mode": 1, "quant_scale_ckv": torch.ones(1, 1)}, "kv_cache"),
    ({"weight_quant_mode": 3}, "weight_quant_mode"),
    ({"k_nope_clip_alpha": torch.ones(1)}, "k_nope_clip_alpha"),
]


@pytest.mark.parametrize(("changes", "argument"), REFUSALS)
def test_refused_calls_write_nothing(changes: dict[str, Any], argument: str) -> None:
    args, options = small_call(**changes)
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=argument):
        npu.npu_mla_prolog_v3(*args, **options)
    assert not args[-2].any() and not args[-1].any()


def test_a_cache_that_does_not_fit_is_left_alone() -> None:
    args, options = small_call()
    args[-1] = torch.zeros(1, 16, 1, 6)
    with pytest.raises(ValueError, match="kr_cache"):
        npu.npu_mla_prolog_v3(*args, **options)
    assert not args[-2].any() and not args[-1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_meta_tensors_have_the_dtypes_of_real_ones(dtype: torch.dtype) -> None:
    args, options = small_call(query_norm_flag=True)
    args = [tensor.to(dtype) for tensor in args]
    real = npu.npu_mla_prolog_v3(*args, **options)
    meta = npu.npu_mla_prolog_v3(
        *(tensor.to("meta") for tensor in args),
        cache_index=options["cache_index"].to("meta"),
        query_norm_flag=True,
    )
    assert [(t.dtype, t.shape) for t in meta] == [(t.dtype, t.shape) for t in real]
    assert real[0].dtype == dtype


def test_an_empty_cache_is_not_written() -> None:
    args, options = small_call()
    want = npu.npu_mla_prolog_v3(*args, **options)[0]
    args[-2:] = [torch.zeros(0, 16, 1, 16), torch.zeros(0, 16, 1, 4)]
    assert torch.equal(npu.npu_mla_prolog_v3(*args, **options)[0], want)
