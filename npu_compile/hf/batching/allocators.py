"""Cache allocators whose blocks attention reads in place.

transformers gives block tables to full attention only. Here are those of a sliding window, and of MLA's
latents, which transformers' paged cache has no place for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cache_allocators import (
    FullAttentionCacheAllocator,
    SlidingAttentionCacheAllocator,
)

RING, LATENT = "ascend_fia_ring", "ascend_fia_latent"
"""The attention types under which the allocators are known to transformers."""

ABSORBED_QUERY = 16
"""Most query tokens of a request that MLA's operator takes on latents (torch_npu docs)."""


class RingAllocator(SlidingAttentionCacheAllocator):
    """A window's tokens are in a ring of W slots, and after a step's token is written they are all the token
    sees, in an order that attention doesn't care about: decode reads the ring as it is. Several tokens see
    windows of their own, older tokens included that their writes replace: they are read from before it.
    """

    supports_block_table = True
    fill_block_table = FullAttentionCacheAllocator.fill_block_table
    get_cache_for_block_table = FullAttentionCacheAllocator.get_cache_for_block_table


class LatentAllocator(FullAttentionCacheAllocator):
    """MLA: per token one latent of kv_lora_rank and one rope part, for all heads.

    One block table serves both, so both need the same distance between blocks. The latents of all blocks,
    (blocks, layers, block_size, L), come first and the rope parts, (blocks, layers, block_size, R), behind.
    """

    rows_per_token = 1

    def __init__(
        self,
        index: int,
        config: Any,
        num_key_value_heads: int,
        cache_dtype: torch.dtype,
        page_size: int,
        layer_indices: list[int],
        allow_block_sharing: bool,
    ) -> None:
        self.widths = (config.kv_lora_rank, config.qk_rope_head_dim)
        self.cache_dtype = cache_dtype
        self._before_cache_tensor_init(
            index=index,
            layer_indices=layer_indices,
            tokens_per_page=page_size,
            bytes_per_page=sum(self.widths) * cache_dtype.itemsize * page_size,
            allow_block_sharing=allow_block_sharing,
        )

    def register_cache_tensor(
        self, bytes_per_sector: int, non_trash_bytes: int, cache_tensor: Tensor, pool: Any
    ) -> None:
        blocks = cache_tensor.numel() // self.bytes_per_block
        values = cache_tensor.view(self.cache_dtype)
        self._regions = []
        start = 0
        for width in self.widths:
            shape = (blocks, self.pages_per_block, self.tokens_per_page, width)
            count = blocks * self.tokens_per_block * width
            self._regions.append(values[start : start + count].view(shape))
            start += count
        self._after_cache_tensor_init(non_trash_bytes, bytes_per_sector, values, pool)
        self.bytes_per_sector = bytes_per_sector

    def get_cache_for_block_table(self, layer_idx: int) -> tuple[Tensor, Tensor]:
        """(pages, block_size, 1, width) of latents and of rope parts; both have a layer's pages
        ``len(layer_indices)`` pages apart."""
        page = self.layer_indices.index(layer_idx)
        latents, ropes = (
            region.view(-1, self.tokens_per_page, 1, region.shape[-1])[page:] for region in self._regions
        )
        return latents, ropes

    def copy_blocks(self, src_blocks: list[int], dst_blocks: list[int]) -> None:
        for region in self._regions:
            device = region.device
            region[torch.tensor(dst_blocks, device=device)] = region[torch.tensor(src_blocks, device=device)]


def reads_table(allocator: Any, longest_query: int) -> bool:
    """Whether attention reads this allocator's blocks in place in a step with such queries."""
    if isinstance(allocator, RingAllocator):
        return longest_query == 1
    return not isinstance(allocator, LatentAllocator) or longest_query <= ABSORBED_QUERY
