"""Which runtime captures for which device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .cpu_graph import CpuGraphRuntime
from .errors import CaptureError
from .interface import GraphRuntime
from .npu_graph import NpuGraphRuntime


def runtime_for(args: Sequence[Any]) -> GraphRuntime:
    """A runtime for the device that the tensors of ``args`` are on.

    Raises :class:`CaptureError` for a device without one, for several devices, or without tensors.
    """
    devices = {arg.device for arg in args if isinstance(arg, Tensor)}
    names = ", ".join(sorted(map(str, devices)))
    if len(devices) != 1:
        raise CaptureError(f"the graph's inputs are on {names or 'no device'}; a capture needs one device")
    device = devices.pop()
    if device.type == "npu":
        current = torch.get_device_module("npu").current_device()
        if device.index != current:
            raise CaptureError(
                f"the graph's inputs are on {names}, the current device is npu:{current}; call "
                f"torch.npu.set_device({device.index})"
            )
        return NpuGraphRuntime()
    if device.type == "cpu":
        return CpuGraphRuntime()
    raise CaptureError(f"there is no graph capture for tensors on {names}")
