"""transformers' paged cache, read where it lies."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching.cache import (
    ATTN_TYPE_TO_ALLOCATOR,
    PagedAttentionCache,
    group_layers_by_attn_type,
)
from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION, SLIDING_ATTENTION

from ...errors import AscendFiaError
from ..engine_options import EngineOptions
from ..kv_views import AFTER_KEYWORD, KEYWORD, KVView, LatentKV, PackedKV, PagedKV
from .allocators import LATENT, RING, LatentAllocator, RingAllocator, reads_table
from .device_memory import sized_for
from .pages import ChannelPages, Pages, RealPages, TokenPages
from .step import KEYWORD as STEP
from .step import Part, Step

FIA_TYPES = {RING: RingAllocator, LATENT: LatentAllocator}


class FiaPagedCache(PagedAttentionCache):
    """The cache of a continuous batch whose attention is FIA.

    Blocks, sectors and prefix sharing are transformers'. What differs: sliding and latent layers have block
    tables as well, memory is planned as for flash attention (no masks, no repeated heads), and
    :meth:`update` writes with ``npu_scatter_pa_kv_cache`` and hands attention the blocks, not a copy.
    """

    def __init__(
        self,
        config: Any,
        continuous_batching_config: Any,
        device: torch.device | str,
        dtype: torch.dtype,
        options: EngineOptions,
        **kwargs: Any,
    ) -> None:
        ATTN_TYPE_TO_ALLOCATOR.update(FIA_TYPES)
        int8 = options.int8
        _require_page_size(continuous_batching_config.page_size, 16 if int8 is None else 32)
        stored = dtype if int8 is None else torch.int8
        planned = planning_config(config)
        engine = sized_for(torch.device(device), planned, continuous_batching_config, stored)
        super().__init__(planned, engine, device=device, dtype=stored, **kwargs)
        # The engine looks allocators up by transformers' own names of attention types.
        self.cache_allocators = {a.layer_type: a for a in self.cache_allocators.values()}
        self.config = config
        self.read_cache_limit = self._infer_read_cache_limit()
        self.int8 = int8
        self.connector = options.connector
        self.pages = self._make_pages(dtype, continuous_batching_config.page_size)
        if LATENT in planned_types(config) and continuous_batching_config.cpu_offload_space != 0:
            space = continuous_batching_config.cpu_offload_space
            raise AscendFiaError(
                "cpu_offload_space", space, "a latent cache can't be offloaded: it must be 0"
            )

    def _make_pages(self, dtype: torch.dtype, page_size: int) -> Pages:
        if self.int8 is None:
            return RealPages()
        if self.int8.scales is None:
            return TokenPages(dtype, self.layer_to_allocator)
        return ChannelPages(self.int8, dtype, torch.device(self.device), page_size)

    def reads_table(self, allocator: Any, longest_query: int) -> bool:
        """Whether attention reads this allocator's blocks in place in a step with such queries."""
        return (self.int8 is None or longest_query == 1) and reads_table(allocator, longest_query)

    def _infer_max_decode_fast_path_length(self) -> int:
        """A ring's table is never longer than its window, so only the others limit what decode may hold."""
        limits = [
            a.tokens_per_page * self.max_blocks_per_request
            for a in self.cache_allocators.values()
            if not isinstance(a, RingAllocator)
        ]
        unlimited = 2**31 - 1 if self.max_blocks_per_request else 0
        return min(limits, default=unlimited)

    def extend_read_and_write_indices(self, *args: Any) -> None:
        """Nothing: slots and tables come with the step."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Write a step's keys and values, (1, N_kv, T, D), and leave in ``kwargs`` where attention reads.

        Returns the keys and values of packed attention: the step's own, or those read from the cache.
        """
        step: Step = kwargs[STEP]
        allocator = self.layer_to_allocator[layer_idx]
        part = step.parts[allocator.index]
        caches = allocator.get_cache_for_block_table(layer_idx)
        new_keys, new_values = (states.squeeze(0).transpose(0, 1) for states in (key_states, value_states))
        read = new_keys, new_values
        if self.connector is not None:
            self.connector.wait(layer_idx)
        gather = part.gather
        if gather is not None and gather.own is not None:
            read = self.pages.read(layer_idx, caches, gather.rows)
            read[0].index_copy_(0, gather.own, new_keys)
            read[1].index_copy_(0, gather.own, new_values)
        if part.written is not None:
            new_keys, new_values = (new.index_select(0, part.written) for new in (new_keys, new_values))
        self.pages.write(layer_idx, (new_keys, new_values), caches, part.slots)
        if self.connector is not None:
            self.connector.written(layer_idx)
            kwargs[AFTER_KEYWORD] = partial(self.connector.save, layer_idx)
        if gather is not None and gather.own is None:
            read = self.pages.read(layer_idx, caches, gather.rows)
        kwargs[KEYWORD] = self._view(allocator, caches, layer_idx, part, step)
        keys, values = (tokens.transpose(0, 1).unsqueeze(0) for tokens in read)
        return keys, values

    def _view(
        self, allocator: Any, caches: tuple[Tensor, Tensor], layer: int, part: Part, step: Step
    ) -> KVView:
        if part.block_table is None:
            window = allocator.sliding_window if isinstance(allocator, RingAllocator) else None
            return PackedKV(step.query_lengths, part.kv_lengths, window)
        table, queries, lengths = part.block_table, step.query_lengths, part.kv_lengths
        if isinstance(allocator, LatentAllocator):
            return LatentKV(*caches, table, queries, lengths, step.decode)
        return PagedKV(*caches, table, queries, lengths, step.decode, self.pages.antiquant(layer))


def _require_page_size(size: int, multiple: int) -> None:
    if size % multiple:
        raise AscendFiaError("page_size", size, f"the operator takes multiples of {multiple}")


def is_latent(config: Any) -> bool:
    """Whether the model caches MLA's latents."""
    return getattr(config, "kv_lora_rank", None) is not None


def planned_types(config: Any) -> list[str]:
    """The allocator type of each layer. Raises AscendFiaError for a model whose cache has no place here."""
    names = {SLIDING_ATTENTION: RING, FULL_ATTENTION: LATENT if is_latent(config) else FULL_ATTENTION}
    types = [""] * config.num_hidden_layers
    for name, layers in group_layers_by_attn_type(config).items():
        for layer in layers:
            types[layer] = names[name]
    if LATENT in types and set(types) != {LATENT}:
        raise AscendFiaError("layer_types", sorted(set(types)), "latent layers can't share a paged cache")
    return types


def planning_config(config: Any) -> Any:
    """A copy of ``config`` by which transformers sizes the cache of the fused operators."""
    planned = copy.copy(config)
    planned.layer_types = planned_types(config)
    # The engine's rules for flash attention: no mask tensors, no repeated K/V heads.
    planned._attn_implementation = "flash_attention_2"
    if is_latent(config):
        planned.num_key_value_heads = 1
        planned.head_dim = -(-(config.kv_lora_rank + config.qk_rope_head_dim) // 2)
    return planned
