"""``copy_`` between host and device, with torch_npu's blocking."""

from __future__ import annotations

from torch import Tensor

from .launch import capturing, launch, synchronise
from .tensors import alias, on_npu


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """The kernel of ``aten::copy_``. A copy from or to pageable memory waits, which a capture refuses."""
    if self.numel() == 0:
        return self
    device = (self if on_npu(self) else src).device.index
    if on_npu(self) and on_npu(src):
        target, source = alias(self), alias(src)
        launch(lambda: target.copy_(source), "aten::copy_", device)
    elif on_npu(self):
        _to_device(self, src, non_blocking and src.is_pinned(), device)
    else:
        _to_host(self.detach(), src, non_blocking, device)
    return self


def _to_device(self: Tensor, src: Tensor, asynchronous: bool, device: int) -> None:
    target = alias(self)
    if not asynchronous:
        if capturing(device):
            synchronise(device)
        src = src.detach().clone()  # staged by the driver
    launch(lambda: target.copy_(src), "memcpy_h2d", device)


def _to_host(self: Tensor, src: Tensor, non_blocking: bool, device: int) -> None:
    source = alias(src)
    if capturing(device) and not (non_blocking and self.is_pinned()):
        synchronise(device)
    launch(lambda: self.copy_(source), "memcpy_d2h", device)
    if not non_blocking:
        synchronise(device)
