"""What capturing a graph would do, for a report; nothing is run or captured."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from .captured import CapturedCallable
from .options import CaptureOptions

PlanRow = tuple[str, str, str, str, str]
"""Record, operator, call, key, source."""


@dataclass(frozen=True)
class CaptureExplanation:
    """The update plan of a graph and where its lengths come from.

    ``lengths`` says what a step's lengths cost; ``capture_sizes`` are the batch sizes that smaller batches
    are padded to, None where batches are captured as they come, for the reason in ``padding_refusal`` if
    somebody asked. ``refusal`` is why the graph can't be captured at all.
    """

    plan: tuple[PlanRow, ...]
    lengths: str
    capture_sizes: tuple[int, ...] | None
    padding_refusal: str | None
    refusal: str | None


def explain_capture(gm: fx.GraphModule, options: CaptureOptions | None = None) -> CaptureExplanation:
    """What :func:`npu_compile.runtime.capture` would do with the lowered graph ``gm``."""
    return explanation(CapturedCallable(gm, options or CaptureOptions()))


def explanation(function: CapturedCallable) -> CaptureExplanation:
    """The same of a callable that exists."""
    return CaptureExplanation(
        plan=tuple(function.plan.table()),
        lengths=function.lengths_cost,
        capture_sizes=function.capture_sizes,
        padding_refusal=function.padding_refusal,
        refusal=function.refusal,
    )
