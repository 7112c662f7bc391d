"""How many blocks an NPU has room for; transformers looks at the host's memory there."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionMemoryHandler
from transformers.generation.continuous_batching.utils import find_head_dim, find_num_key_value_heads


class DeviceMemory(PagedAttentionMemoryHandler):
    """transformers' plan of activations, inputs and cache, for the free memory of ``device``.

    It plans in units of one block of all layers: the cache's own unit isn't known yet, and is a few of them.
    """

    def __init__(self, device: torch.device, config: Any, cb_config: Any, dtype: torch.dtype) -> None:
        self._device = device
        row = 2 * find_num_key_value_heads(config) * find_head_dim(config) * dtype.itemsize
        block = config.num_hidden_layers * row * cb_config.page_size
        super().__init__(config, cb_config, dtype, block, cb_config.page_size, block, ["full_attention"])

    def get_available_memory(self) -> int:
        free, _ = torch.get_device_module(self._device).mem_get_info(self._device)
        return int(free * self.cb_config.max_memory_percent)


def sized_for(device: torch.device, config: Any, cb_config: Any, dtype: torch.dtype) -> Any:
    """``cb_config``, for an NPU with a number of blocks that its memory has room for.

    ``config`` is the planning one, ``dtype`` the cache's. Raises MemoryError or ValueError, as transformers
    does, where what was asked for has no room.
    """
    if device.type != "npu":
        return cb_config
    memory = DeviceMemory(device, config, cb_config, dtype)
    sized = copy.copy(cb_config)
    sized.max_batch_tokens, sized.num_blocks = memory.infer_max_batch_tokens_and_num_sectors()
    # What follows compares the plan with the host's memory, which doesn't matter.
    sized.max_memory_percent = 1e6
    return sized
