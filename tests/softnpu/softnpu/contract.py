"""What the operators of the simulated machine refuse."""

from __future__ import annotations

from collections.abc import Callable


def checker(name: str) -> Callable[..., None] | None:
    """Called with the arguments of npu::``name``; raises where the target machine would."""
    return None
