"""Counters of a captured callable."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class CaptureStats:
    """What a captured callable has done so far.

    ``captures`` graphs captured; ``recaptures`` those of them that replaced a graph whose tensors had moved;
    ``replays``; ``updates``, one per replay of a graph with records; ``host_reads`` transfers of lengths
    from the device; ``warmups`` steps that ran uncaptured right before their capture; ``fallbacks`` steps
    that ran uncaptured, by reason.
    """

    captures: int = 0
    recaptures: int = 0
    replays: int = 0
    updates: int = 0
    host_reads: int = 0
    warmups: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
