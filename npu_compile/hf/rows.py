"""Packed rows ↔ a padded batch, for devices whose packed layouts don't take a model's head size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Where the packed tokens of ``lengths`` (B,), per request, are in a (B, longest) batch."""

    lengths: Tensor
    longest: int

    @classmethod
    def of(cls, cumulative: Tensor) -> Rows:
        """From the end of each request, a host tensor."""
        lengths = torch.diff(cumulative, prepend=cumulative.new_zeros(1))
        return cls(lengths, int(lengths.max()))

    def batch(self, packed: Tensor) -> Tensor:
        """(T, …) → (B, longest, …); zeros behind each request's tokens."""
        out = packed.new_zeros(self.lengths.numel(), self.longest, *packed.shape[1:])
        out[self._valid(packed.device)] = packed
        return out

    def packed(self, batch: Tensor) -> Tensor:
        """(B, longest, …) → (T, …)."""
        return batch[self._valid(batch.device)]

    def _valid(self, device: torch.device) -> Tensor:
        return (torch.arange(self.longest) < self.lengths[:, None]).to(device)
