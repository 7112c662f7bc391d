"""Captured graphs whose sequence lengths are updated, not captured anew; see docs/capture.md."""

from __future__ import annotations

from torch import fx

from .captured import CapturedCallable, reset
from .errors import BusyError, CaptureError, MovedInputError, ReplayError, UpdateError
from .interface import GraphRuntime
from .options import CaptureOptions
from .stats import CaptureStats
from .update_plan import UpdatePlan, UpdateRow

__all__ = [
    "BusyError",
    "CaptureError",
    "CaptureOptions",
    "CaptureStats",
    "CapturedCallable",
    "MovedInputError",
    "ReplayError",
    "UpdateError",
    "UpdatePlan",
    "UpdateRow",
    "capture",
    "reset",
]


def capture(
    gm: fx.GraphModule, options: CaptureOptions | None = None, runtime: GraphRuntime | None = None
) -> CapturedCallable:
    """A callable with the calling convention of ``gm``, a lowered graph, that captures and replays it.

    Nothing is captured before the first call. ``runtime`` defaults to the one for the device of the inputs.
    Raises :class:`CaptureError` for a graph that can't be captured, if ``options`` say so.
    """
    return CapturedCallable(gm, options or CaptureOptions(), runtime)
