"""For any mask: predicate, emitted arguments and attention agree with what the program computes, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.passes.mask.tracing import Result, program, run, trace

INF = float("inf")


@dataclass(frozen=True)
class Case:
    """Sizes of the scores, and one mask over them as a list of conditions."""

    batch: int
    query: int
    key: int
    conditions: tuple[str, ...]
    offset: int
    held_offset: bool
    window: int
    chunk: int
    fill: str
    seed: int

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """A held offset, a padding mask (B, K) and lengths (B,)."""
        generator = torch.Generator().manual_seed(self.seed)
        padding = torch.rand(self.batch, self.key, generator=generator) > 0.3
        lengths = torch.randint(-1, self.key + 2, (self.batch,), generator=generator)
        return torch.tensor(self.offset), padding, lengths

    def build(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def mask(offset: Tensor, padding: Tensor, lengths: Tensor) -> Tensor:
            rows = torch.arange(self.query) + (offset if self.held_offset else self.offset)
            q, k = rows[None, None, :, None], torch.arange(self.key)[None, None, None, :]
            b = torch.arange(self.batch)[:, None, None, None]
            conditions = {
                "causal": lambda: k <= q,
                "window": lambda: k > q - self.window,
                "near": lambda: (q - k).abs() <= self.window,
                "lengths": lambda: k < lengths[b],
                "from": lambda: k >= lengths[:, None, None, None] - self.window,
                "padding": lambda: padding[b, k],
                "chunk": lambda: k // self.chunk == q // self.chunk,
                "any": lambda: (k <= q) | padding[:, None, None, :],
            }
            keep = q.new_ones((), dtype=torch.bool)
            for name in self.conditions:
                keep = keep & conditions[name]()
            keep = keep.expand(self.batch, 1, self.query, self.key)
            if self.fill == "bool":
                return keep
            if self.fill == "-inf":
                return torch.zeros(keep.shape).masked_fill(keep.logical_not(), -INF)
            if self.fill == "product":
                return (1.0 - keep.to(torch.float32)) * torch.finfo(torch.float32).min
            return torch.where(keep, torch.zeros(()), torch.finfo(torch.float32).min)

        return mask


CONDITIONS = ("causal", "window", "near", "lengths", "from", "padding", "chunk", "any")

cases = st.builds(
    Case,
    batch=st.integers(1, 3),
    query=st.integers(1, 7),
    key=st.integers(1, 9),
    conditions=st.lists(st.sampled_from(CONDITIONS), max_size=3, unique=True).map(tuple),
    offset=st.integers(-4, 9),
    held_offset=st.booleans(),
    window=st.integers(1, 8),
    chunk=st.integers(1, 5),
    fill=st.sampled_from(("bool", "-inf", "minimum", "product")),
    seed=st.integers(0, 9),
)


def check(case: Case) -> Result:
    inputs = case.inputs()
    traced = trace(case.build(), *inputs)
    sizes = (case.batch, 2, case.query, case.key)
    found = run(traced, sizes)
    mask = case.build()(*inputs)
    keep = mask if mask.dtype == torch.bool else mask == 0
    assert torch.equal(found.keep, keep.expand(sizes)), "predicate"
    kept_rows = keep.any(-1, keepdim=True)
    implied = found.implied[:, None] & kept_rows
    assert torch.equal(implied, keep), "operator arguments"
    torch.manual_seed(case.seed)
    scores, values = torch.randn(sizes), torch.randn(*sizes[:2], case.key, 3)
    torch.testing.assert_close(
        found.attention(scores, values), program(scores, mask, values), rtol=0, atol=1e-6
    )
    hand_written = program(scores, mask, values, sdpa=False)
    result = found.attention(scores, values, hand_written=True)
    torch.testing.assert_close(result, hand_written, rtol=0, atol=1e-6, equal_nan=True)
    assert found.meaning.maybe_empty_rows or bool(kept_rows.all()), "a row was proved to have a key"
    return found


@settings(max_examples=60, deadline=None)
@given(cases)
def test_any_combination(case: Case) -> None:
    check(case)


@pytest.mark.nightly
@settings(max_examples=1500, deadline=None)
@given(cases)
def test_many_combinations(case: Case) -> None:
    check(case)
