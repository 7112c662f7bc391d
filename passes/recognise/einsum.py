"""The letters of an einsum of two tensors, with ``...`` and an implicit result spelled out."""

from __future__ import annotations

import string
from collections.abc import Sequence

Letters = tuple[str, ...]


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[Letters, Letters, Letters] | None:
    """One letter a dimension for both operands and the result.

    None where it is no product of two tensors: other than two operands, a diagonal, or a dimension that
    one operand alone is summed over.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(ranks) != 2:
        return None
    rest = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max(rest)
    names = [f"...{i}" for i in range(most)]
    left, right = (_spelled(term, names[most - n :]) for term, n in zip(terms, rest, strict=True))
    if not arrow:
        single = sorted(c for c in string.ascii_letters if inputs.count(c) == 1)
        output = "..." * bool(most) + "".join(single)
    result = _spelled(output, names)
    if any(len(set(letters)) != len(letters) for letters in (left, right, result)):
        return None
    alone = set(left) ^ set(right)
    return (left, right, result) if alone <= set(result) <= set(left) | set(right) else None


def _spelled(term: str, ellipsis: Sequence[str]) -> Letters:
    before, dots, after = term.partition("...")
    return (*before, *(ellipsis if dots else ()), *after)
