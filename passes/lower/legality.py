"""Whether the target's operator takes a call, by the contract checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.recognise.assemble import Declined


def refusal(op: str, arguments: Mapping[str, Any], target: Target) -> str | None:
    """The rules of ``op`` that a call of nodes and plain values breaks, as a sentence; None if legal."""
    values = {name: a.meta["val"] if isinstance(a, fx.Node) else a for name, a in arguments.items()}
    return "; ".join(dict.fromkeys(map(str, check(op, values, target)))) or None


def illegal(form: CallForm, target: Target) -> str | None:
    """The same for a form."""
    return refusal(form.op, form.arguments, target)


def first_legal(forms: Iterable[CallForm], target: Target) -> CallForm:
    """The first of ``forms`` that is legal.

    Raises:
        Declined: none is; the message has the reasons.
    """
    reasons: dict[str, None] = {}
    for form in forms:
        reason = illegal(form, target)
        if reason is None:
            return form
        reasons[reason] = None
    raise Declined("; or ".join(reasons))
