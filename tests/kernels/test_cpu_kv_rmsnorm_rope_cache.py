"""npu_kv_rmsnorm_rope_cache: what lands where in the caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle import caches
from tests.kernels.oracle.around import deinterleaved, rms_norm
from tests.kernels.oracle.compare import assert_close, assert_rounded
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu
MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")


def call_of(draw: Draw) -> dict[str, Any]:
    mode, quantised = draw.one_of(*MODES), draw.maybe()
    dtype = draw.one_of(torch.float32, torch.bfloat16, torch.float16)
    batch, tokens = draw.size(1, 3), draw.one_of(1, 2, 17)
    latent, rope = draw.one_of(32, 64), 32
    block_size = 32 if quantised else 16
    stored = torch.int8 if quantised else dtype
    capacity = 20
    blocks = batch * -(-tokens // block_size) + 2
    lead = (batch, 1, capacity) if mode == "Norm" else (blocks, block_size, 1)
    if mode == "Norm":
        index = torch.stack([draw.distinct(tokens, capacity) for _ in range(batch)])
    elif "BLK" in mode:
        index = draw.distinct(batch * -(-tokens // block_size), blocks) * block_size
    else:
        index = draw.distinct(batch * tokens, blocks * block_size)
    skipped = draw.size(0, index.numel())
    if skipped < index.numel():
        index.view(-1)[skipped] = -1
    scales = {}
    if quantised:
        scales = {
            "k_rope_scale": draw.uniform(draw.one_of(1, rope), low=10, high=40),
            "c_kv_scale": draw.uniform(draw.one_of(1, latent), low=10, high=40),
        }

    def fill(*shape: int) -> torch.Tensor:
        return torch.full(shape, 77, dtype=stored) if quantised else draw.normal(*shape, dtype=stored)

    cos_tokens = draw.one_of(1, tokens)
    return {
        "mode": mode,
        "kv": draw.normal(batch, 1, tokens, latent + rope, dtype=dtype),
        "gamma": draw.normal(latent, dtype=dtype),
        "cos": draw.normal(batch, 1, cos_tokens, rope, dtype=dtype),
        "sin": draw.normal(batch, 1, cos_tokens, rope, dtype=dtype),
        "index": index,
        "caches": [fill(*lead, rope), fill(*lead, latent)],
        "scales": scales,
        "block_size": block_size,
    }


def slot_of(call: dict[str, Any], b: int, token: int) -> int:
    """Where a token goes; -1 nowhere. In Norm mode counted through all requests' positions."""
    index, block_size = call["index"], call["block_size"]
    tokens = call["kv"].shape[2]
    if call["mode"] == "Norm":
        position = int(index[b, token])
        return position if position < 0 else b * call["caches"][0].shape[2] + position
    if "BLK" in call["mode"]:
        start = int(index[b * -(-tokens // block_size) + token // block_size])
        return start if start < 0 else start + token % block_size
    return int(index[b * tokens + token])


@EXAMPLES
def test_keys_are_normed_rotated_and_stored(examples: int) -> None:
    def check(call: dict[str, Any]) -> None:
        kv, latent, nz = call["kv"], call["gamma"].shape[0], call["mode"].endswith("NZ")
        normed = rms_norm(kv[..., :latent], call["gamma"], 1e-5)[0]
        rotated = deinterleaved(kv[..., latent:], call["cos"], call["sin"])
        before = [cache.clone() for cache in call["caches"]]
        k_cache, ckv_cache, k_rope, c_kv = npu.npu_kv_rmsnorm_rope_cache(
            kv, call["gamma"], call["cos"], call["sin"], call["index"], *call["caches"],
            cache_mode=call["mode"], is_output_kv=True, **call["scales"],
        )  # fmt: skip
        assert k_cache.data_ptr() == call["caches"][0].data_ptr(), "the caches are written in place"
        plain_norm = kv[..., :latent] * torch.rsqrt(kv[..., :latent].pow(2).mean(-1, keepdim=True) + 1e-5)
        assert_close(c_kv, normed, plain_norm * call["gamma"])
        halves = torch.cat([kv[..., latent::2], kv[..., latent + 1 :: 2]], -1)
        half = halves.shape[-1] // 2
        turned = torch.cat([-halves[..., half:], halves[..., :half]], -1)
        assert_close(k_rope, rotated, halves * call["cos"] + turned * call["sin"])
        scales = [call["scales"].get(name) for name in ("k_rope_scale", "c_kv_scale")]
        for cache, old, rows, outs, scale in zip(
            (k_cache, ckv_cache), before, (rotated, normed), (k_rope, c_kv), scales, strict=True
        ):
            tokens = _tokens(cache, call["mode"], nz)
            untouched = _tokens(old, call["mode"], nz)
            for b in range(kv.shape[0]):
                for token in range(kv.shape[2]):
                    slot = slot_of(call, b, token)
                    if slot < 0:
                        continue
                    untouched[slot] = tokens[slot]
                    if scale is None:
                        assert torch.equal(tokens[slot], outs[b, 0, token])
                    elif kv.dtype == torch.float32:
                        assert_rounded(tokens[slot], rows[b, 0, token] * scale)
            assert torch.equal(tokens, untouched), "a slot was written that no token goes to"

    for_all(calls(call_of), examples, check)


def _tokens(cache: torch.Tensor, mode: str, nz: bool) -> torch.Tensor:
    """(slots, D), copied out of the cache's memory."""
    if mode == "Norm":
        return cache[:, 0].flatten(0, 1).clone()
    if not nz:
        return cache.flatten(0, 2).clone()
    blocks, block_size, _, dim = cache.shape
    width = 32 // cache.element_size()
    memory = cache.flatten().view(blocks, dim // width, block_size, width)
    return torch.stack([caches.at(memory, slot, 1, True)[0] for slot in range(blocks * block_size)])


@pytest.mark.parametrize("index", [[[0, 0]], [[0, 20]], [[-2, 0]]])
def test_refused_index_writes_nothing(index: list[list[int]]) -> None:
    kv, gamma, cos = torch.randn(1, 1, 2, 96), torch.ones(64), torch.ones(1, 1, 2, 32)
    k_cache, ckv_cache = torch.zeros(1, 1, 20, 32), torch.zeros(1, 1, 20, 64)
    with pytest.raises(ValueError, match="index"):
        npu.npu_kv_rmsnorm_rope_cache(kv, gamma, cos, cos, torch.tensor(index), k_cache, ckv_cache)
    assert (k_cache == 0).all() and (ckv_cache == 0).all()
