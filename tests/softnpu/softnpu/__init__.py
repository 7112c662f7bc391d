"""A software NPU: the real torch_npu on a machine without one. Import it before torch; see docs/softnpu.md.

Tensors live on device "npu"; torch_npu's allocator, streams, events and NPUGraph are the real ones. Only the
CANN below them and the kernels are software.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .libraries import RUNTIME  # isort: skip  before torch
from . import aten, npu
from .launch import launched, recording

aten.install()
npu.install()

__all__ = ["RUNTIME", "device_bytes_used", "launched", "launches", "lazy", "recording", "strict_waits"]


@contextmanager
def lazy(seed: int) -> Iterator[None]:
    """Run nothing before somebody waits for it, then as little as possible, in an order drawn by ``seed``.

    Shows dependencies between streams that are missing. ``seed`` is positive.
    """
    RUNTIME.soft_lazy(seed)
    try:
        yield
    finally:
        RUNTIME.soft_lazy(0)


@contextmanager
def strict_waits(on: bool) -> Iterator[None]:
    """Off: replays pass a wait that no update has answered, as on a CANN without value waits."""
    RUNTIME.soft_strict_waits(int(on))
    try:
        yield
    finally:
        RUNTIME.soft_strict_waits(1)


@contextmanager
def launches() -> Iterator[list[str]]:
    """The names of the kernels launched inside the block, also by a capture or an update."""
    launched.clear()
    recording[0] = True
    try:
        yield launched
    finally:
        recording[0] = False


def device_bytes_used() -> int:
    """Bytes of device memory that torch_npu's allocator has taken from the driver."""
    return int(RUNTIME.soft_used())
