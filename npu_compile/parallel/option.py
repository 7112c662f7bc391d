"""``options={"context_parallel": {...}}``: checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npu_compile.option_kinds import did_you_mean

KEYS: Mapping[str, str] = {
    "mode": '"prefill" (tokens in a zigzag) or "decode" (an interleaved KV cache)',
    "group": "a ProcessGroup, a one-dim DeviceMesh, (DeviceMesh, dim name), or None for all ranks",
    "heads": '"replicated" (default) or "sharded": whether the ranks have different query heads',
    "steps": "prefill: the StepInputs that each step's metadata is loaded into",
}


@dataclass(frozen=True)
class ContextParallelOption:
    """A :class:`~npu_compile.option_kinds.Kind`: None, or a mapping with the keys of ``KEYS``."""

    allowed: str = "None, or a mapping with " + "; ".join(f"{key!r}: {what}" for key, what in KEYS.items())

    def accept(self, value: object) -> Any:
        from npu_compile.passes.context_parallel.config import ContextParallel, StepInputs

        from .group import named, resolve

        if value is None or isinstance(value, ContextParallel):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"{type(value).__name__} is not a mapping")
        for key in value:
            if key not in KEYS:
                raise ValueError(f"unknown key {key!r}{did_you_mean(key, KEYS)}")
        mode: Any = value.get("mode")
        heads = value.get("heads", "replicated")
        _one_of("mode", mode, ("prefill", "decode"))
        _one_of("heads", heads, ("replicated", "sharded"))
        if heads == "sharded" and mode == "prefill":
            raise ValueError("heads 'sharded' is for mode 'decode' only")
        steps = value.get("steps")
        if (mode == "prefill") != isinstance(steps, StepInputs):
            raise ValueError("mode 'prefill' needs a StepInputs as 'steps', and mode 'decode' has none")
        group = named(resolve(value.get("group")))
        return ContextParallel(mode, group, heads == "sharded", steps or StepInputs())


def _one_of(key: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ValueError(f"{key} {value!r} is not one of {names}{did_you_mean(value, allowed)}")
