"""Dynamic sizes: traced at one size, right at every other, and no guard is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.passes.mask.plan import Bound
from npu_compile.passes.site import ScoreShape
from tests.passes.mask.tracing import Result, run, trace


def check(function: Callable[..., Tensor], first: tuple[Any, ...], second: tuple[Any, ...]) -> Result:
    traced = trace(function, *first, symbolic=True)
    shape = traced.masks[0].meta["val"].shape
    env = next(s for s in shape if isinstance(s, torch.SymInt)).node.shape_env
    guards = len(env.guards)
    keep = function(*[x.clone() for x in second])
    sizes = (len(keep), 4, *keep.shape[2:])
    found = run(traced, sizes, shape=ScoreShape(shape[0], 4, shape[2], shape[3]), inputs=second)
    assert len(env.guards) == guards, "the graph was not specialised"
    assert torch.equal(found.keep, keep.expand(sizes))
    rows = keep.any(-1, keepdim=True)
    assert torch.equal(found.implied[:, None] & rows, keep.expand(sizes[0], 1, *sizes[2:]))
    return found


def tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length)


SIZES = [((2, 5), (2, 7)), ((3, 4), (3, 9))]
FIRST, SECOND = ((tokens(*a), tokens(*b)) for a, b in SIZES)


def grid(x: Tensor, key: int, offset: Any = 0) -> tuple[Tensor, Tensor]:
    return (torch.arange(x.shape[1]) + offset)[None, None, :, None], torch.arange(key)[None, None, None, :]


def test_growing_cache() -> None:
    def mask(x: Tensor, past: Tensor) -> Tensor:
        q, k = grid(x, past.shape[1] + x.shape[1], past.shape[1])
        return (k <= q).expand(x.shape[0], 1, -1, -1)

    plan = check(mask, FIRST, SECOND).plan
    assert (plan.sparse_mode, plan.atten_mask, plan.lengths) == (3, "causal", None)


def test_growing_cache_with_a_window() -> None:
    def mask(x: Tensor, past: Tensor) -> Tensor:
        q, k = grid(x, past.shape[1] + x.shape[1], past.shape[1])
        return ((k <= q) & (k > q - 3)).expand(x.shape[0], 1, -1, -1)

    plan = check(mask, FIRST, SECOND).plan
    assert (plan.sparse_mode, plan.pre_tokens, plan.next_tokens, plan.lengths) == (4, 2, 0, None)


def test_fixed_capacity_and_a_counter() -> None:
    def mask(x: Tensor, cache: Tensor, counter: Tensor) -> Tensor:
        q, k = grid(x, cache.shape[1], counter)
        result = (k <= q).expand(x.shape[0], 1, -1, -1)
        cache.index_copy_(1, q.flatten(), x)
        counter.add_(x.shape[1])
        return result

    found = check(
        mask, (tokens(2, 5), tokens(2, 17), torch.tensor(3)), (tokens(3, 4), tokens(3, 9), torch.tensor(5))
    )
    assert (found.plan.sparse_mode, found.lengths) == (3, [9])
    assert isinstance(found.plan.lengths, Bound) and not found.plan.lengths.clamped


def test_unrelated_sizes() -> None:
    """Top-left causality, and nothing known about which of the lengths is larger."""

    def mask(x: Tensor, y: Tensor) -> Tensor:
        q, k = grid(x, y.shape[1])
        return (k <= q).expand(x.shape[0], 1, -1, -1)

    for second in (SECOND, (tokens(3, 9), tokens(3, 4))):
        plan = check(mask, FIRST, second).plan
        assert (plan.sparse_mode, plan.lengths) == (2, None)


def test_symbolic_length() -> None:
    def mask(x: Tensor, y: Tensor) -> Tensor:
        k = torch.arange(y.shape[1])
        return (k < x.shape[1])[None, None, None].expand(x.shape[0], 1, 1, -1)

    for second in (SECOND, (tokens(3, 9), tokens(3, 4))):
        found = check(mask, FIRST, second)
        assert (
            found.lengths == [min(second[0].shape[1], second[1].shape[1])] and found.plan.atten_mask is None
        )


@pytest.mark.parametrize("batch", [2, 3])
def test_padding_mask(batch: int) -> None:
    def mask(x: Tensor, padding: Tensor) -> Tensor:
        q, k = grid(x, padding.shape[1])
        b = torch.arange(x.shape[0])[:, None, None, None]
        return (k <= q) & padding[b, k]

    generator = torch.Generator().manual_seed(1)
    second = torch.rand(batch, 6, generator=generator) > 0.4
    found = check(mask, (tokens(2, 5), torch.ones(2, 5, dtype=torch.bool)), (tokens(batch, 6), second))
    assert found.plan.atten_mask == "explicit" and found.meaning.words.startswith("causal, padding mask")
