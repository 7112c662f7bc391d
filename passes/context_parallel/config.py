"""What the pass is told: mode, group, and where a prefill step's metadata comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .collectives import Group
from .metadata import Half, PrefillMetadata, PrefillStep


class StepInputs:
    """The metadata of the running prefill step, given to every rewritten graph as trailing inputs.

    The owner loads it before each call of the compiled model; graphs read it when they are called.
    """

    def __init__(self) -> None:
        self._step: PrefillStep | None = None
        self.tokens_per_rank: tuple[int, ...] = ()

    def load(self, metadata: PrefillMetadata, device: torch.device | str = "cpu") -> None:
        """Set the metadata for the calls that follow; indices go to ``device``."""
        self._step = metadata.step(device)
        self.tokens_per_rank = metadata.tokens_per_rank

    @property
    def step(self) -> PrefillStep:
        """Raises RuntimeError where no metadata has been loaded."""
        if self._step is None:
            raise RuntimeError("context parallel prefill was called before its metadata was loaded")
        return self._step

    def values(self) -> tuple[Any, ...]:
        """The step flat, in the order of :data:`NAMES`."""
        step = self.step
        halves = [
            x for half in (step.prev, step.next) for x in (half.q_lengths, half.kv_lengths, half.kv_rows)
        ]
        return (step.total_q_prev_tokens, step.rows_per_rank, *halves)

    @staticmethod
    def unflatten(values: tuple[Any, ...]) -> PrefillStep:
        """The inverse of :meth:`values`."""
        split, rows, *halves = values
        return PrefillStep(split, rows, Half(*halves[:3]), Half(*halves[3:]))


def with_step(function: Callable[..., Any], steps: StepInputs) -> Callable[..., Any]:
    """``function`` given the running step's metadata behind its own arguments."""

    def run(*args: Any) -> Any:
        return function(*args, *steps.values())

    return run


NAMES = (
    "total_q_prev_tokens",
    "rows_per_rank",
    "q_lengths_prev",
    "kv_lengths_prev",
    "kv_rows_prev",
    "q_lengths_next",
    "kv_lengths_next",
    "kv_rows_next",
)


@dataclass(frozen=True)
class ContextParallel:
    """How to rewrite a graph.

    Args:
        mode: "prefill": tokens are sharded in a zigzag; "decode": the KV cache is sharded.
        group: the ranks.
        heads_sharded: decode only: the ranks have different query heads (tensor parallel).
        steps: prefill only: where the metadata of each step is loaded.
    """

    mode: Literal["prefill", "decode"]
    group: Group
    heads_sharded: bool = False
    steps: StepInputs = field(default_factory=StepInputs)
