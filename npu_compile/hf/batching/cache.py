"""transformers' paged cache, read where it lies."""

from __future__ import annotations

import copy
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
from ..kv_views import KEYWORD, KVView, LatentKV, PackedKV, PagedKV
from .allocators import LATENT, RING, LatentAllocator, RingAllocator
from .step import KEYWORD as STEP
from .step import Part, Step

FIA_TYPES = {RING: RingAllocator, LATENT: LatentAllocator}


class FiaPagedCache(PagedAttentionCache):
    """The cache of a continuous batch whose attention is FIA.

    Blocks, sectors and prefix sharing are transformers'. What differs: sliding and latent layers have block
    tables as well, memory is planned as for flash attention (no masks, no repeated heads), and
    :meth:`update` writes with ``npu_scatter_pa_kv_cache`` and hands attention the blocks, not a copy.
    """

    def __init__(self, config: Any, continuous_batching_config: Any, **kwargs: Any) -> None:
        ATTN_TYPE_TO_ALLOCATOR.update(FIA_TYPES)
        super().__init__(planning_config(config), continuous_batching_config, **kwargs)
        # The engine looks allocators up by transformers' own names of attention types.
        self.cache_allocators = {a.layer_type: a for a in self.cache_allocators.values()}
        self.config = config
        self.read_cache_limit = self._infer_read_cache_limit()
        if LATENT in planned_types(config) and continuous_batching_config.cpu_offload_space != 0:
            space = continuous_batching_config.cpu_offload_space
            raise AscendFiaError(
                "cpu_offload_space", space, "a latent cache can't be offloaded: it must be 0"
            )

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
        rows = [states.squeeze(0).transpose(0, 1) for states in (key_states, value_states)]
        read = rows
        if part.gather is not None and part.gather.own is not None:
            read = [_read(cache, part.gather.rows) for cache in caches]
            for tokens, own in zip(read, rows, strict=True):
                tokens.index_copy_(0, part.gather.own, own)
        _write(rows, caches, part)
        if part.gather is not None and part.gather.own is None:
            read = [_read(cache, part.gather.rows) for cache in caches]
        kwargs[KEYWORD] = _view(allocator, caches, part, step)
        keys, values = (tokens.transpose(0, 1).unsqueeze(0) for tokens in read)
        return keys, values


def _read(cache: Tensor, rows: Tensor) -> Tensor:
    return cache.flatten(0, 1).index_select(0, rows)


def _write(rows: list[Tensor], caches: tuple[Tensor, Tensor], part: Part) -> None:
    key, value = rows if part.written is None else [r.index_select(0, part.written) for r in rows]
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key.contiguous(), value.contiguous(), *caches, part.slots, cache_mode="Norm"
    )


def _view(allocator: Any, caches: tuple[Tensor, Tensor], part: Part, step: Step) -> KVView:
    if part.block_table is None:
        window = allocator.sliding_window if isinstance(allocator, RingAllocator) else None
        return PackedKV(step.query_lengths, part.kv_lengths, window)
    kind = LatentKV if isinstance(allocator, LatentAllocator) else PagedKV
    return kind(*caches, part.block_table, step.query_lengths, part.kv_lengths, step.decode)


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
