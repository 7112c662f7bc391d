"""Declared decompositions: attention that no fused operator of the device does, of torch's own operators.

Each is one node of a compiled graph, named and counted in its report, and computes no more than the masks
and lengths leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from . import softcap


@dataclass(frozen=True)
class Composed:
    """An operator of the compiled graph: its schema, what it computes on any device, and its fake."""

    schema: str
    kernel: Callable[..., tuple[Tensor, Tensor]]
    fake: Callable[..., tuple[Tensor, Tensor]]


COMPOSED = {
    "softcap_attention": Composed(softcap.SCHEMA, softcap.softcap_attention, softcap.fake_softcap_attention),
}
