"""Programs that dequantise an int8 cache and attend to the result: the operator reads int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.paged.antiquant import dequantise_inside
from npu_compile.passes.paged.rewrite import read_in_place
from npu_compile.passes.recognise import recognise
from npu_compile.passes.verify import verify, writes_of
from tests.passes.graphs import aten_graph, random

ensure_graph_ops()

BATCH, HEADS, KV_HEADS, DIM, CAPACITY = 2, 4, 2, 32, 54
LENGTHS = torch.tensor([33, 5])


def int8(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)


def attend(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    keep = torch.arange(key.shape[2]) < lengths[:, None]
    return F.scaled_dot_product_attention(query, key, value, keep[:, None, None], enable_gqa=True)


def cast_then_scale(query: Tensor, keys: Tensor, values: Tensor, scale: Tensor, lengths: Tensor) -> Tensor:
    key, value = (cache.to(query.dtype) * scale for cache in (keys, values))
    return attend(query, key, value, lengths)


def scale_in_float32(query: Tensor, keys: Tensor, values: Tensor, scale: Tensor, lengths: Tensor) -> Tensor:
    key, value = ((scale.float() * cache.float()).to(query.dtype) for cache in (keys, values))
    return attend(query, key, value, lengths)


def dense(scale: Tensor, dtype: torch.dtype = torch.float32, query_len: int = 1) -> tuple[Tensor, ...]:
    shape = (BATCH, KV_HEADS, CAPACITY, DIM)
    query = random(BATCH, HEADS, query_len, DIM, dtype=dtype)
    return query, int8(*shape, seed=1), int8(*shape, seed=2), scale.to(dtype), LENGTHS


def rewritten(
    program: Callable[..., Tensor], inputs: tuple[Tensor, ...], target: Target = Target.CPU
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    module = aten_graph(program, *inputs)
    lower(module, recognise(module.graph), target)
    writes = writes_of(module.graph)
    notes = dequantise_inside(module, target)
    verify(module.graph)
    assert writes_of(module.graph) == writes
    return module, notes


def fused(module: fx.GraphModule) -> Any:
    (call,) = [n for n in module.graph.nodes if "npu_fused" in str(n.target)]
    return call


CHANNELS = random(KV_HEADS, 1, DIM, seed=3).abs() / 50 + 0.01


@pytest.mark.parametrize("program", [cast_then_scale, scale_in_float32])
@pytest.mark.parametrize("scale", [CHANNELS, CHANNELS[None], torch.tensor(0.02), torch.tensor([0.02])])
@pytest.mark.parametrize("query_len", [1, 3])
def test_int8_goes_in(program: Callable[..., Tensor], scale: Tensor, query_len: int) -> None:
    inputs = dense(scale, query_len=query_len)
    module, (note,) = rewritten(program, inputs)
    call = fused(module)
    assert note == f"{call.name}: keys and values are read as int8"
    assert {call.args[i].meta["val"].dtype for i in (1, 2)} == {torch.int8}
    assert call.kwargs.get("key_antiquant_mode", 0) == 0
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=1e-5)


def test_scales_are_in_the_querys_dtype() -> None:
    """What devices ask for, which take the call as it is."""
    inputs = dense(CHANNELS, torch.bfloat16)
    module, (note,) = rewritten(scale_in_float32, inputs, Target.ASCEND910B)
    assert "read as int8" in note
    assert fused(module).kwargs["key_antiquant_scale"].meta["val"].dtype == torch.bfloat16
    wanted = scale_in_float32(*(t.double() if t.is_floating_point() else t for t in inputs))
    plain = (scale_in_float32(*inputs).double() - wanted).abs().max()
    assert (module(*inputs).double() - wanted).abs().max() <= 2 * plain + 1e-3


def test_blocks_of_int8() -> None:
    """Gathered by block table and then dequantised: read in place, as int8."""

    def program(
        query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, scale: Tensor
    ) -> Tensor:
        gathered = [cache[table].flatten(1, 2).transpose(1, 2) for cache in (keys, values)]
        key, value = (blocks.to(query.dtype) * scale for blocks in gathered)
        return attend(query, key, value, lengths)

    query = random(BATCH, HEADS, 1, DIM)
    blocks = [int8(7, 32, KV_HEADS, DIM, seed=seed) for seed in (1, 2)]
    table = torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    inputs = (query, *blocks, table, torch.tensor([33, 64]), CHANNELS)
    module, _ = rewritten(program, inputs)
    (paged,) = read_in_place(module, Target.CPU)
    verify(module.graph)
    assert "in blocks of 32" in paged
    assert not any(n.meta["val"].dtype == torch.float32 for n in module.graph.nodes if "index" in n.name)
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=1e-5)


def one_scale_per_token(
    query: Tensor, keys: Tensor, values: Tensor, scale: Tensor, lengths: Tensor
) -> Tensor:
    return cast_then_scale(query, keys, values, scale[0, 0, 0] * torch.ones(CAPACITY, 1), lengths)


def written_in_between(query: Tensor, keys: Tensor, values: Tensor, scale: Tensor, lengths: Tensor) -> Tensor:
    key, value = (cache.to(query.dtype) * scale for cache in (keys, values))
    keys.fill_(3)
    return attend(query, key, value, lengths)


@pytest.mark.parametrize(
    ("program", "reason"), [(one_scale_per_token, "not one number"), (written_in_between, "written to")]
)
def test_left_as_it_is(program: Callable[..., Tensor], reason: str) -> None:
    module, (note,) = rewritten(program, dense(CHANNELS))
    assert reason in note
    assert fused(module).args[1].meta["val"].dtype == torch.float32
    torch.testing.assert_close(module(*dense(CHANNELS)), program(*dense(CHANNELS)), atol=1e-5, rtol=1e-5)


def test_only_keys_in_int8() -> None:
    def program(query: Tensor, keys: Tensor, values: Tensor, scale: Tensor, lengths: Tensor) -> Tensor:
        return attend(query, keys.to(query.dtype) * scale, values, lengths)

    query, keys, _, scale, lengths = dense(CHANNELS)
    inputs = query, keys, random(BATCH, KV_HEADS, CAPACITY, DIM), scale, lengths
    module, notes = rewritten(program, inputs)
    assert notes == ()
    torch.testing.assert_close(module(*inputs), program(*inputs), atol=1e-5, rtol=1e-5)
