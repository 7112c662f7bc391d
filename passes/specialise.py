"""Symbolic numbers that an operator takes as plain ones: fixed under a guard, where that is allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def specialised(number: Any) -> Any:
    """A number as a Python number; a symbolic one as dynamo saw it, which adds a guard that it is the same.

    None where it is not known before the program runs, and where the user has marked it as dynamic
    (``torch._dynamo.mark_dynamic``): a guard on it would be an error.
    """
    if not isinstance(number, torch.SymInt | torch.SymFloat):
        return number
    if not number.node.has_hint() or _is_marked(number):
        return None
    return int(number) if isinstance(number, torch.SymInt) else float(number)


def given_number(argument: Any) -> float | None:
    """The number that a call is given, as such or by a node; None for a tensor and for what isn't known."""
    number = specialised(argument.meta.get("val") if isinstance(argument, fx.Node) else argument)
    return float(number) if isinstance(number, int | float) else None


def seen_when_tracing(size: int | torch.SymInt) -> int:
    """A size, or what it was when dynamo saw it, for choices that are right either way; 1 where unknown."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


def _is_marked(number: torch.SymInt | torch.SymFloat) -> bool:
    symbols = number.node.expr.free_symbols
    for tracked in number.node.shape_env.tracked_fakes or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        sizes = tracked.fake.shape if isinstance(tracked.fake, torch.Tensor) else ()
        for size, constraint in zip(sizes, constraints, strict=False):
            promised = constraint is not None and not constraint.warn_only
            if promised and isinstance(size, torch.SymInt) and size.node.expr.free_symbols & symbols:
                return True
    return False
