"""The one place where a tensor of sequence lengths becomes host integers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


@dataclass
class HostReads:
    """Counts what turning lengths into host values costs.

    ``conversions`` counts copies to the host that later readers share, and every read of a tensor that
    isn't on the CPU; ``device_syncs`` counts the latter of both, each of which waits for the device.
    Reading a tensor that lies on the CPU already is neither.
    """

    conversions: int = 0
    device_syncs: int = 0

    def to_host(self, lengths: Tensor) -> Tensor:
        """A new int64 CPU tensor with the values of ``lengths``.

        ``lengths``: 1-D, any integer dtype, any device. Raises ValueError for anything else.
        """
        require_lengths("lengths", lengths)
        self.conversions += 1
        if lengths.is_cpu:
            return lengths.to(torch.int64, copy=True)
        self.device_syncs += 1
        return lengths.to("cpu", torch.int64)

    def to_list(self, argument: str, lengths: Tensor) -> list[int]:
        """The values of ``lengths``, a 1-D integer tensor; ``argument`` names it in errors."""
        require_lengths(argument, lengths)
        if not lengths.is_cpu:
            self.conversions += 1
            self.device_syncs += 1
        values: list[int] = lengths.tolist()
        return values


def require_lengths(argument: str, lengths: Tensor) -> None:
    """Raise ValueError unless ``lengths`` is a 1-D tensor of integers."""
    if lengths.dtype not in INTEGERS:
        raise ValueError(f"{argument} has dtype {lengths.dtype}; sequence lengths are integers")
    if lengths.dim() != 1:
        raise ValueError(f"{argument} has shape {tuple(lengths.shape)}; sequence lengths are 1-D")


HOST_READS = HostReads()
