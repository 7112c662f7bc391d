"""Numbers and scales of int8 caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from npu_compile.errors import AscendFiaError
from npu_compile.kv_quant import Int8KV, KVScales, LayerScales, calibrate_kv, dequantise, quantise
from npu_compile.kv_quant.int8 import nz_pages, nz_rows, token_scale
from tests.npu_compile.hf.models import build, prompts


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_halves_round_to_even() -> None:
    real = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.49, 3.51])
    assert quantise(real, torch.tensor(1.0)).tolist() == [0, 2, 2, 0, -2, -2, 3, 4]


def test_large_numbers_saturate() -> None:
    scale = torch.tensor([0.5, 0.02])
    assert quantise(scale * 1e3, scale).tolist() == [127, 127]
    assert quantise(scale * -1e3, scale).tolist() == [-128, -128]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_is_at_most_half_a_step(dtype: torch.dtype) -> None:
    real = random(54, 3, 17).to(dtype)
    scale = (real.float().abs().amax(0) / 127).to(dtype).float()
    back = dequantise(quantise(real, scale), scale, torch.float64)
    inside = (real.double() / scale.double()).abs() <= 127.5
    step = scale.double().expand_as(back)
    assert ((back - real.double()).abs() <= step / 2 * (1 + 1e-6))[inside].all()
    assert inside.all()


def test_a_token_uses_all_of_int8() -> None:
    rows = random(5, 3, 16) * torch.tensor([1.0, 10.0, 0.1, 0.0, 3.0])[:, None, None]
    scale = token_scale(rows)
    stored = quantise(rows, scale[:, None, None])
    assert stored.abs().amax((1, 2)).tolist() == [127, 127, 127, 0, 127]
    assert scale[3] == 1


def test_nz_tiles() -> None:
    """Element d of head n of the token at offset t is at [n, d // 32, t, d % 32] of its page."""
    pages = torch.randint(-128, 127, (3, 32, 2, 64), dtype=torch.int8)
    tiles = nz_pages(pages)
    assert tiles.data_ptr() == pages.data_ptr()
    slots = torch.tensor([0, 37, 95, 31])
    rows = nz_rows(tiles, slots)
    for row, slot in zip(rows, slots.tolist(), strict=True):
        for head in range(2):
            for dim in range(64):
                expected = tiles[slot // 32, head, dim // 32, slot % 32, dim % 32]
                assert row[head * 64 + dim if row.dim() == 1 else (head, dim)] == expected


def scales(heads: int = 2, dim: int = 16, layers: int = 2) -> KVScales:
    return KVScales(
        tuple(
            LayerScales(
                random(heads, 1, dim, seed=i).abs() + 0.1, random(heads, 1, dim, seed=9 + i).abs() + 0.1
            )
            for i in range(layers)
        )
    )


def test_scales_from_a_file(tmp_path: Path) -> None:
    written = scales(layers=11)
    written.save(tmp_path / "kv.safetensors")
    read = KVScales.load(tmp_path / "kv.safetensors")
    assert len(read.layers) == 11
    for a, b in zip(read.layers, written.layers, strict=True):
        assert torch.equal(a.key, b.key) and torch.equal(a.value, b.value)


def test_a_file_with_offsets_is_refused(tmp_path: Path) -> None:
    tensors = {
        f"layers.0.{kind}": torch.ones(2, 1, 16) for kind in ("key_scale", "value_scale", "key_offset")
    }
    save_file(tensors, str(tmp_path / "kv.safetensors"))
    with pytest.raises(AscendFiaError, match=r"kv\.safetensors=.*key_offset.*no offsets"):
        KVScales.load(tmp_path / "kv.safetensors")


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(2, 1, 16), torch.full((2, 1, 16), -1.0), torch.ones(2, 16), torch.ones(2, 1, 16).half()],
)
def test_bad_scales(bad: torch.Tensor) -> None:
    with pytest.raises(AscendFiaError, match="key scale"):
        LayerScales(bad, torch.ones(2, 1, 16))


def test_layouts() -> None:
    cpu, npu = torch.device("cpu"), torch.device("privateuseone")
    assert [Int8KV(scales()).nz(d) for d in (cpu, npu)] == [False, True]
    assert [Int8KV(scales(), "nd").nz(d) for d in (cpu, npu)] == [False, False]
    assert [Int8KV().nz(d) for d in (cpu, npu)] == [False, False]
    with pytest.raises(AscendFiaError, match="layout='nz'"):
        Int8KV(None, "nz")
    with pytest.raises(AscendFiaError, match="layout='row'"):
        Int8KV(scales(), "row")  # type: ignore[arg-type]


def test_calibration_takes_the_largest_of_all_batches() -> None:
    """Against keys read back from a plain cache of each prompt."""
    model = build("llama", "eager")
    requests = prompts(5, 40)
    found = calibrate_kv(model, [torch.tensor([r]) for r in requests], progress=False)
    largest = torch.zeros(2, 2, 16)
    for request in requests:
        with torch.no_grad():
            cache = model(torch.tensor([request]), use_cache=True).cache
        for layer in range(2):
            largest[layer] = torch.maximum(largest[layer], cache.layers[layer].values[0].abs().amax(1))
    for layer in range(2):
        torch.testing.assert_close(found.layers[layer].value[:, 0], largest[layer] / 127)


def test_calibration_needs_batches() -> None:
    with pytest.raises(ValueError, match="batches"):
        calibrate_kv(build("llama", "eager"), [], progress=False)
