"""One captured shape of a graph, ready to be replayed on new inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .inputs import BoundInputs
from .interface import CapturedGraph
from .outputs import Outputs
from .update_plan import Update


@dataclass(frozen=True)
class Capture:
    """A captured graph, what it was captured with, and how its results are handed out.

    ``counters`` are the caller's integer tensors that a replay writes to.
    """

    graph: CapturedGraph
    bound: BoundInputs
    counters: list[Tensor]
    outputs: Outputs

    def replay(self, args: Sequence[Any], ints: Sequence[int], updates: Sequence[Update]) -> list[Any]:
        """Run the step on ``args`` and return results that outlive the next replay."""
        self.bound.write(args, ints)
        if self.graph.waits:
            self.graph.update(updates)
        self.graph.replay()
        # A replay writes without changing versions, by which mirrors of counters see that they are stale.
        torch._C._increment_version(self.counters)
        return self.outputs.hand_out(args, self.graph.outputs)
