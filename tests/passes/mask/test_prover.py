"""Integer values and what is proved about them."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

from npu_compile.passes.mask.formula import FALSE, TRUE, And, Compare, Or, conjunction, disjunction, negation
from npu_compile.passes.mask.linear import Dim, Held, Linear, absolute, floor
from npu_compile.passes.mask.meaning import MaskAnalyser
from npu_compile.passes.mask.prover import Prover
from tests.passes.mask.tracing import trace

Q, K = Linear.of(Dim(-2)), Linear.of(Dim(-1))
SHAPE = (3, 4)
PROVER = Prover(fx.Graph())


def value(linear: Linear, q: int, k: int) -> int:
    """The integer at one index, without the code under test."""
    total = linear.const
    for atom, factor in linear.terms:
        if isinstance(atom, Dim):
            total += factor * (q if atom.axis == -2 else k)
        else:
            inner = value(atom.value, q, k)  # type: ignore[union-attr]
            total += factor * (inner // atom.divisor if hasattr(atom, "divisor") else abs(inner))
    return total


numbers = st.integers(-5, 5)
plain = st.builds(lambda a, b, c: Q * a + K * b + c, numbers, numbers, numbers)
linears = st.one_of(
    plain,
    st.builds(lambda a, b, c: floor(a, c) + b, plain, plain, st.integers(1, 4)),
    st.builds(lambda a, b: b - absolute(a), plain, plain),
)
INDICES = list(itertools.product(range(SHAPE[0]), range(SHAPE[1])))


def holds(formula: object, q: int, k: int) -> bool:
    if isinstance(formula, Compare):
        return value(formula.linear, q, k) >= 0
    assert isinstance(formula, (And, Or))
    return (all if isinstance(formula, And) else any)(holds(p, q, k) for p in formula.parts)


@settings(max_examples=200, deadline=None)
@given(linears)
def test_proofs_hold_for_every_index(linear: Linear) -> None:
    if PROVER.nonnegative(linear, SHAPE):
        assert all(value(linear, *index) >= 0 for index in INDICES)
    compared = PROVER.compare(linear, SHAPE)
    assert all(holds(compared, *index) == (value(linear, *index) >= 0) for index in INDICES)
    assert all(holds(negation(compared), *index) != holds(compared, *index) for index in INDICES)


@settings(max_examples=200, deadline=None)
@given(plain)
def test_sums_of_indices_are_decided_whenever_they_can_be(linear: Linear) -> None:
    assert PROVER.nonnegative(linear, SHAPE) == all(value(linear, *index) >= 0 for index in INDICES)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(plain, min_size=1, max_size=3), min_size=1, max_size=3))
def test_simplified_formulas_are_equal(clauses: list[list[Linear]]) -> None:
    formula = disjunction(conjunction(Compare(linear) for linear in clause) for clause in clauses)
    simple = PROVER.simplify(formula, SHAPE)
    assert all(holds(simple, *index) == holds(formula, *index) for index in INDICES)


@settings(max_examples=200, deadline=None)
@given(plain, st.integers(1, 6))
def test_division(linear: Linear, divisor: int) -> None:
    divided = PROVER.divided(linear, divisor, SHAPE)
    assert all(value(divided, *index) == value(linear, *index) // divisor for index in INDICES)


def test_a_bound_that_follows_from_another_is_dropped() -> None:
    loose, tight = Compare(Q - K + 2), Compare(Q - K)
    assert PROVER.simplify(conjunction([loose, tight]), SHAPE) == tight
    assert PROVER.simplify(disjunction([loose, tight]), SHAPE) == loose
    assert PROVER.simplify(conjunction([tight, Compare(K - Q - 1)]), SHAPE) == FALSE
    assert PROVER.simplify(disjunction([tight, Compare(K - Q - 1)]), SHAPE) == TRUE


def test_a_cache_write_proves_its_positions() -> None:
    """index_copy_ fails for positions outside of the cache; nothing else is known of the counter."""

    def step(counter: Tensor, cache: Tensor, new: Tensor) -> Tensor:
        cache.index_copy_(1, torch.arange(3) + counter, new)
        return (torch.arange(9) < counter)[None, None, None]

    traced = trace(step, torch.tensor(2), torch.zeros(1, 9), torch.zeros(1, 3))
    prover = MaskAnalyser(traced.graph).prover
    start = Linear.of(Held(next(iter(traced.graph.nodes)), ()))
    assert prover.nonnegative(start) and prover.nonnegative(-start + 6)
    assert not prover.nonnegative(start - 1) and not prover.nonnegative(-start + 5)


def test_a_scatter_that_wraps_proves_nothing() -> None:
    """cache[:, positions] = new counts negative positions from the end."""

    def step(counter: Tensor, cache: Tensor, new: Tensor) -> Tensor:
        cache[:, torch.arange(3) + counter] = new
        return (torch.arange(9) < counter)[None, None, None]

    traced = trace(step, torch.tensor(2), torch.zeros(1, 9), torch.zeros(1, 3))
    start = Linear.of(Held(next(iter(traced.graph.nodes)), ()))
    assert not MaskAnalyser(traced.graph).prover.nonnegative(start)
