"""How a captured callable behaves where there is a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CaptureOptions:
    """The choices; a reset keeps them.

    ``on_refusal``: a graph or shape that can't be captured runs uncaptured (``"eager"``) or raises
    :class:`CaptureError` (``"error"``). ``on_move``: a parameter or cache that moved is captured anew at
    its new address, or raises :class:`MovedInputError`. ``threads``: concurrent calls wait for each other,
    or raise :class:`BusyError`. ``mirror_counters``: keep cache counters on the host, which saves the read
    of lengths; writes that bypass the version of a counter (``tensor.data``, NumPy) go unnoticed.
    ``max_graphs``: captured shapes of one callable; further shapes run uncaptured.

    ``capture_sizes`` and ``max_batch`` say which batch sizes are captured where a graph's batch can be
    padded; with neither, batches are captured as they come. ``on_oversize``: what a batch does that is
    larger than all of them.
    """

    on_refusal: Literal["eager", "error"] = "eager"
    on_move: Literal["recapture", "error"] = "recapture"
    threads: Literal["serialise", "refuse"] = "serialise"
    mirror_counters: bool = True
    max_graphs: int = 64
    capture_sizes: tuple[int, ...] | None = None
    max_batch: int | None = None
    on_oversize: Literal["eager", "error"] = "eager"
