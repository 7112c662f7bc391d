"""Whether the target's operator takes a call, by the contract checker."""

from __future__ import annotations

from collections.abc import Iterable

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.recognise.assemble import Declined


def illegal(form: CallForm, target: Target) -> str | None:
    """The operator's rules that the call breaks, as a sentence; None if it is legal."""
    violations = check(form.op, form.arguments(), target)
    return "; ".join(dict.fromkeys(str(v) for v in violations)) or None


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
