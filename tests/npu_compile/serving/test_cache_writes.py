"""Writes by slot: these cells and no others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npu_compile.errors import AscendFiaError
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.serving import slots_of, write_kv, write_kv_functional
from tests.npu_compile.hf.drive import Recorder

ensure_graph_ops()


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(5, 2, 8, generator=generator) for _ in "kv")
    caches = [torch.full((3, 16, 2, 8), float("nan")) for _ in "kv"]
    return key, value, caches[0], caches[1]


SLOTS = torch.tensor([35, 2, 17, -1, 0])


def test_cells() -> None:
    key, value, key_cache, value_cache = tensors()
    with Recorder() as recorder:
        write_kv(key, value, key_cache, value_cache, SLOTS)
    for rows, cache in ((key, key_cache), (value, value_cache)):
        for row, (block, offset) in ((0, (2, 3)), (1, (0, 2)), (2, (1, 1)), (4, (0, 0))):
            assert torch.equal(cache[block, offset], rows[row])
        assert int(cache.isnan().sum()) == (3 * 16 - 4) * 16
    ((arguments, named),) = recorder.named("npu_scatter_pa_kv_cache")
    assert arguments[4].tolist() == [35, 2, 17, 0]
    assert named == {"cache_mode": "Norm"}


def test_functional_leaves_the_caches_alone() -> None:
    key, value, key_cache, value_cache = tensors()
    keys, values = write_kv_functional(key, value, key_cache, value_cache, SLOTS)
    assert key_cache.isnan().all() and value_cache.isnan().all()
    write_kv(key, value, key_cache, value_cache, SLOTS)
    assert torch.equal(keys.nan_to_num(7), key_cache.nan_to_num(7))
    assert torch.equal(values.nan_to_num(7), value_cache.nan_to_num(7))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([0, 1, 2, 3, 48], "slots=48: the cache has slots 0 to 47"),
        ([0, 1, 2, 3, -2], "slots=-2"),
        ([4, 1, -1, 4, -1], "slots=4: two tokens"),
        ([0, 1], "one slot for each token"),
    ],
)
def test_bad_slots_write_nothing(slots: list[int], message: str) -> None:
    key, value, key_cache, value_cache = tensors()
    with pytest.raises(AscendFiaError, match=message):
        write_kv(key, value, key_cache, value_cache, torch.tensor(slots))
    assert key_cache.isnan().all() and value_cache.isnan().all()


def test_slots_of_positions() -> None:
    table = torch.tensor([[7, 2], [4, -1], [3, 9], [0, 0]], dtype=torch.int32)
    positions = torch.tensor([17, 16, 5, -1])
    assert slots_of(table, positions, 16).tolist() == [2 * 16 + 1, -1, 3 * 16 + 5, -1]
