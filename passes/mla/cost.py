"""Whether to attend over the latents or over keys and values expanded from them.

Counted per batch element and layer, causality left aside. Absorbed, each query is first
multiplied by W_UK, and its result by W_UV, and one head of L + R is read by all heads; expanded,
each key in the cache is multiplied by both, again at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Choice = Literal["absorb", "expand"]

FLOPS_PER_ELEMENT = 100
"""Multiply-adds a device does in the time in which it moves one element of memory."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one MLA computation; ``ranks`` is over how many ranks the keys are spread."""

    query: int
    key: int
    heads: int
    latent: int
    nope: int
    rope: int
    value: int
    ranks: int = 1

    @property
    def keys(self) -> int:
        """Keys that one rank attends to."""
        return -(-self.key // self.ranks)

    @property
    def absorbed(self) -> int:
        """Multiply-adds, with memory traffic counted as such."""
        projected = self.query * self.latent * (self.nope + self.value)
        attended = self.query * self.keys * (2 * self.latent + self.rope)
        weights = self.heads * self.latent * (self.nope + self.value)
        moved = self.keys * (self.latent + self.rope) + weights + 2 * self.query * self.heads * self.latent
        return self.heads * (projected + attended) + FLOPS_PER_ELEMENT * moved

    @property
    def expanded(self) -> int:
        """Multiply-adds, with memory traffic counted as such."""
        projected = self.keys * self.latent * (self.nope + self.value)
        attended = self.query * self.keys * (self.nope + self.rope + self.value)
        weights = self.heads * self.latent * (self.nope + self.value)
        written = self.keys * self.heads * (self.nope + self.value)
        moved = self.keys * (self.latent + self.rope) + weights + 2 * written
        return self.heads * (projected + attended) + FLOPS_PER_ELEMENT * moved


def cheaper(sizes: Sizes) -> Choice:
    return "absorb" if sizes.absorbed < sizes.expanded else "expand"
