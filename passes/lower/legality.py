"""Whether the target's operator takes a call, by the contract checker."""

from __future__ import annotations

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.forms import CallForm


def illegal(form: CallForm, target: Target) -> str | None:
    """The operator's rules that the call breaks, as a sentence; None if it is legal."""
    violations = check(form.op, form.arguments(), target)
    return "; ".join(dict.fromkeys(str(v) for v in violations)) or None
