"""Operators around attention over latents: the output product, and norm, rotation and cache write in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from npu_compile.kernels.targets import Target
from tests.passes.graphs import random
from tests.passes.mla.lowering import FIA_V2, calls, lowered, run

TRANSPOSED = torch.ops.npu.npu_transpose_batchmatmul
WRITE = torch.ops.npu.npu_kv_rmsnorm_rope_cache
DEVICE = Target.ASCEND910_93
B, HEADS, LATENT, ROPE, HEAD, CAPACITY, HIDDEN = 2, 4, 512, 64, 128, 48, 32
EPSILON = 1e-6

Step = Callable[..., Tensor]


def normed(x: Tensor, gamma: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return gamma * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (t[..., : t.shape[-1] // 2].unsqueeze(1) for t in (cos, sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)


def half_rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat([-second, first], -1) * sin.unsqueeze(1)


def stepping(norm: Callable[..., Tensor] = normed, rotate: Callable[..., Tensor] = rotated) -> Step:
    """A decode step from the hidden states on: project, norm, rotate, write to the static cache, attend."""

    def step(*tensors: Tensor) -> Tensor:
        query, hidden, down, gamma, cos, sin, place, latents, ropes, weight = tensors
        latent, rope = F.linear(hidden, down).split([LATENT, ROPE], -1)
        latents.index_copy_(2, place, norm(latent, gamma).view(B, 1, 1, LATENT))
        ropes.index_copy_(2, place, rotate(rope.view(B, 1, 1, ROPE), cos, sin))
        per_head = F.linear(latents, weight).view(B, CAPACITY, -1, 2 * HEAD).transpose(1, 2)
        key_nope, value = per_head.split([HEAD, HEAD], -1)
        key = torch.cat([key_nope, ropes.expand(-1, HEADS, -1, -1)], -1)
        keep = torch.arange(CAPACITY)[None, :] <= place[:, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=keep[None, None])

    return step


step = stepping()


def inputs(seen: int = 9) -> tuple[Tensor, ...]:
    make = lambda *sizes, seed: random(*sizes, seed=seed).to(torch.bfloat16)  # noqa: E731
    angle = random(1, 1, ROPE // 2, seed=8)
    angles = torch.cat([angle, angle], -1)
    return (
        make(B, HEADS, 1, HEAD + ROPE, seed=0),
        make(B, 1, HIDDEN, seed=1),
        make(LATENT + ROPE, HIDDEN, seed=2) / 4,
        make(LATENT, seed=3),
        angles.cos().to(torch.bfloat16),
        angles.sin().to(torch.bfloat16),
        torch.tensor([seen]),
        make(B, 1, CAPACITY, LATENT, seed=4),
        make(B, 1, CAPACITY, ROPE, seed=5),
        make(HEADS * 2 * HEAD, LATENT, seed=6) / 16,
    )


def clones(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.clone() for t in tensors)


def exact(function: Step, tensors: tuple[Tensor, ...]) -> Tensor:
    return function(*(t.double() if t.is_floating_point() else t.clone() for t in tensors))


def assert_as_good(got: Tensor, function: Step, tensors: tuple[Tensor, ...]) -> None:
    """No more than twice as far from float64 as the program itself is."""
    wanted = exact(function, tensors)
    plain = (function(*clones(tensors)).double() - wanted).abs().max()
    assert (got.double() - wanted).abs().max() <= 2 * plain


@pytest.mark.parametrize(("fusions", "product", "write"), [("none", 0, 0), ("output", 1, 0), ("all", 1, 1)])
def test_each_fusion_is_asked_for(fusions: str, product: int, write: int) -> None:
    tensors = inputs()
    module, _ = lowered(step, *clones(tensors), target=DEVICE, choice="absorb", fusions=fusions)
    assert (len(calls(module, FIA_V2)), len(calls(module, TRANSPOSED)), len(calls(module, WRITE))) == (
        1,
        product,
        write,
    )
    copies = calls(module, torch.ops.aten.index_copy_)
    assert len(copies) == (0 if write else 2)
    assert_as_good(run(module, *clones(tensors)), step, tensors)


def test_the_fused_write_leaves_the_caches_as_the_program_does() -> None:
    tensors, seen = inputs(), 9
    module, _ = lowered(step, *clones(tensors), target=DEVICE, choice="absorb", fusions="all")
    ours, theirs = clones(tensors), clones(tensors)
    run(module, *ours)
    step(*theirs)
    for position in (7, 8):
        torch.testing.assert_close(ours[position], theirs[position], rtol=1e-2, atol=1e-2)
        untouched = torch.arange(CAPACITY) != seen
        assert torch.equal(ours[position][:, :, untouched], tensors[position][:, :, untouched])
        assert not torch.equal(ours[position][:, :, seen], tensors[position][:, :, seen])


def test_the_operator_gets_the_rope_cache_first() -> None:
    module, _ = lowered(step, *inputs(), target=DEVICE, choice="absorb", fusions="all")
    (write,) = calls(module, WRITE)
    kv, gamma, cos, _, index, k_cache, ckv_cache = (n.meta["val"] for n in write.args)
    assert tuple(kv.shape) == (B, 1, 1, LATENT + ROPE) and tuple(gamma.shape) == (LATENT,)
    assert tuple(cos.shape) == (B, 1, 1, ROPE) and tuple(index.shape) == (B, 1)
    assert (k_cache.shape[-1], ckv_cache.shape[-1]) == (ROPE, LATENT)
    assert write.kwargs["epsilon"] == EPSILON


def test_torchs_own_rms_norm_is_one_too() -> None:
    with_torchs = stepping(norm=lambda x, gamma: F.rms_norm(x, [LATENT], gamma, EPSILON))
    tensors = inputs()
    module, _ = lowered(with_torchs, *clones(tensors), target=DEVICE, choice="absorb", fusions="all")
    assert len(calls(module, WRITE)) == 1
    assert_as_good(run(module, *clones(tensors)), with_torchs, tensors)


def _scaled(x: Tensor, gamma: Tensor) -> Tensor:
    return normed(x, gamma) * 0.7


def _centred(x: Tensor, gamma: Tensor) -> Tensor:
    return F.layer_norm(x, [LATENT], gamma, None, EPSILON)


def _turned_back(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotated(x, cos, -sin)


def _swapped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (t[..., : ROPE // 2].unsqueeze(1) for t in (cos, sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * cos + odd * sin], -1)


@pytest.mark.parametrize(
    ("norm", "rotate", "fuses"),
    [
        (_scaled, rotated, False),
        (_centred, rotated, False),
        (normed, half_rotated, False),
        (normed, _swapped, False),
        (normed, _turned_back, True),
    ],
)
def test_another_norm_or_rotation_is_not_taken_for_the_operators(norm: Any, rotate: Any, fuses: bool) -> None:
    other, tensors = stepping(norm, rotate), inputs()
    module, _ = lowered(other, *clones(tensors), target=DEVICE, choice="absorb", fusions="all")
    assert len(calls(module, WRITE)) == fuses
    assert_as_good(run(module, *clones(tensors)), other, tensors)


def test_a_cache_that_is_read_between_the_writes_is_written_apart() -> None:
    def peeking(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        query, hidden, down, gamma, cos, sin, place, latents, ropes, weight = tensors
        latent, rope = F.linear(hidden, down).split([LATENT, ROPE], -1)
        latents.index_copy_(2, place, normed(latent, gamma).view(B, 1, 1, LATENT))
        seen = latents.sum()
        ropes.index_copy_(2, place, rotated(rope.view(B, 1, 1, ROPE), cos, sin))
        per_head = F.linear(latents, weight).view(B, CAPACITY, -1, 2 * HEAD).transpose(1, 2)
        key_nope, value = per_head.split([HEAD, HEAD], -1)
        key = torch.cat([key_nope, ropes.expand(-1, HEADS, -1, -1)], -1)
        return F.scaled_dot_product_attention(query, key, value), seen

    module, _ = lowered(peeking, *inputs(), target=DEVICE, choice="absorb", fusions="all")
    assert not calls(module, WRITE) and len(calls(module, torch.ops.aten.index_copy_)) == 2


def test_the_cpu_gets_no_fusions() -> None:
    module, _ = lowered(step, *inputs(), choice="absorb", fusions="all")
    assert not calls(module, TRANSPOSED) and not calls(module, WRITE)
