"""What a K/V connector is told while layers run: it brings caches in, and takes them away."""

from __future__ import annotations

from typing import Protocol


class KVConnector(Protocol):
    """Called per layer, in this order: wait, [the write of the step's keys], written, [attention], save."""

    def wait(self, layer: int) -> None:
        """Return when what others computed of this layer's cache has arrived."""

    def written(self, layer: int) -> None:
        """The step's own keys and values are in the cache; on a device, in the order of its stream."""

    def save(self, layer: int) -> None:
        """Attention has read the cache: it may be copied out."""
