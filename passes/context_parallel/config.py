"""What the pass is told: mode, group, and where a prefill step's metadata comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .collectives import Group
from .metadata import Half, PrefillMetadata, PrefillStep


class StepInputs:
    """The metadata of the running prefill step, given to every rewritten graph as trailing inputs.

    The owner loads it before each call of the compiled model; graphs read it when they are called.
    With ``block_size`` attention reads the keys as pages (:meth:`PrefillMetadata.step`).
    """

    def __init__(self, block_size: int = 0) -> None:
        self.block_size = block_size
        self.tokens_per_rank: tuple[int, ...] = ()
        self._values: dict[str, Any] | None = None

    def load(self, metadata: PrefillMetadata, device: torch.device | str = "cpu") -> None:
        """Set the metadata for the calls that follow; indices go to ``device``."""
        self.tokens_per_rank = metadata.tokens_per_rank
        step = metadata.step(device, self.block_size)
        self._values = {
            "total_q_prev_tokens": step.total_q_prev_tokens,
            "rows_per_rank": step.rows_per_rank,
            "q_lengths_prev": step.prev.q_lengths,
            "kv_lengths_prev": step.prev.kv_lengths,
            "kv_rows_prev": step.prev.kv_rows,
            "q_lengths_next": step.next.q_lengths,
            "kv_lengths_next": step.next.kv_lengths,
        }
        if step.block_table is None:
            self._values["kv_rows_next"] = step.next.kv_rows
        else:
            self._values["block_table"] = step.block_table

    def named(self) -> dict[str, Any]:
        """The step's values by name, in the order of a graph's inputs.

        Raises RuntimeError where no metadata has been loaded.
        """
        if self._values is None:
            raise RuntimeError("context parallel prefill was called before its metadata was loaded")
        return self._values

    def step(self, values: Sequence[Any]) -> PrefillStep:
        """The step that ``values``, in the order of :meth:`named`, stand for."""
        given = dict(zip(self.named(), values, strict=True))
        rows = given["kv_rows_prev"]
        halves = (
            Half(given["q_lengths_prev"], given["kv_lengths_prev"], rows),
            Half(given["q_lengths_next"], given["kv_lengths_next"], given.get("kv_rows_next", rows)),
        )
        sizes = given["total_q_prev_tokens"], given["rows_per_rank"]
        return PrefillStep(*sizes, *halves, given.get("block_table"), self.block_size)


def with_step(function: Callable[..., Any], steps: StepInputs) -> Callable[..., Any]:
    """``function`` given the running step's metadata behind its own arguments."""

    def run(*args: Any) -> Any:
        return function(*args, *steps.named().values())

    return run


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
