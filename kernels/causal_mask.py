"""The mask that FIA's compressed sparse modes (2, 3 and 4) are given."""

from __future__ import annotations

from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

SIZE = 2048

_masks: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


def causal_mask(device: torch.device | str) -> Tensor:
    """bool (2048, 2048), True above the diagonal: True is masked out, as the operator reads it.

    The operator trusts its content and uses it as a tile, whatever the real lengths are. It is the same
    tensor for all callers on a device for as long as one of them holds it, and nobody may write to it.
    """
    device = torch.device(device)
    if device.index is None and device.type not in ("cpu", "meta"):
        device = torch.device(device.type, torch.get_device_module(device.type).current_device())
    mask = _masks.get(device)
    if mask is None:
        with unset_fake_temporarily(), torch.inference_mode(False):
            mask = torch.ones(SIZE, SIZE, dtype=torch.bool, device=device).triu_(1)
        _masks[device] = mask
    return mask
