"""What a graph runtime is: capture once, then one update and one replay per step.

There are two: :class:`~npu_compile.runtime.npu_graph.NpuGraphRuntime` on ``torch.npu.NPUGraph``, and
:class:`~npu_compile.runtime.cpu_graph.CpuGraphRuntime`, which behaves as the first does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .errors import CaptureError
from .split import Split
from .update_plan import Update


@dataclass(frozen=True)
class Record:
    """An attention call of a captured graph: torch_npu's operator name and the lengths it has now."""

    op: str
    lengths: Update


class CapturedGraph(Protocol):
    """A captured step. ``outputs`` are the body's results, whose tensors each replay overwrites.

    ``records`` are the plan's, in call order. They are given their lengths by :meth:`update`; where the
    graph ``waits``, exactly one update must precede each replay, also when no length has changed.
    """

    outputs: tuple[Any, ...]

    @property
    def waits(self) -> bool:
        """Whether a replay waits for an update: there are records, the plan's or others."""

    @property
    def records(self) -> list[Record]: ...

    def update(self, updates: Sequence[Update]) -> None:
        """Give the records new lengths: one update for all, or one for each.

        Raises :class:`UpdateError`, and changes nothing, where an update doesn't fit its record.
        """

    def replay(self) -> None:
        """Run the step. Raises :class:`ReplayError` without an update, or after :meth:`reset`."""

    def reset(self) -> None:
        """Let go of the graph, its memory and every tensor it holds."""


class GraphRuntime(Protocol):
    """Makes captured graphs for tensors on one type of device."""

    def capture(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> CapturedGraph:
        """Capture the body of ``split`` for ``args`` without running it.

        The graph reads and writes its tensor arguments at the addresses they have now. ``updates`` holds
        one update for each record. Raises :class:`CaptureError` naming the node that can't be captured,
        and leaves nothing behind.
        """

    def fence(self) -> None:
        """Make the current stream wait for the stream that used the runtime's graphs last."""

    def eager(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> tuple[Any, ...]:
        """Run the body once without capturing it."""


def body_arguments(args: Sequence[Any], updates: Sequence[Update]) -> list[Any]:
    """The arguments of a body: the graph's own, then the length lists record by record."""
    return [*args, *(lengths for update in updates for lengths in update.values())]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The results of a body, whether it returns one value or several."""
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def pinned(args: Sequence[Any]) -> list[Any]:
    """``args`` with tensors replaced by aliases that stay at today's address whatever the owner does."""
    return [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]


def require_tensor_outputs(outputs: Sequence[Any]) -> None:
    for output in outputs:
        if isinstance(output, list | tuple | dict):
            raise CaptureError("the graph returns a nested structure; only flat results are captured")
