"""A Hugging Face cache that holds this rank's share of the keys.

Each layer keeps rows (B, N, rows, D) of K and V: for multi-head latent attention, of the latents and
their rope. Sequences lie interleaved over the ranks (layout/interleave.py). The last row is spare: a
decode step writes there what another rank keeps, so that its graph is the same on every rank and step.
Layers are of one or two kinds (kinds.py): those with a sliding window keep its tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class CacheStep:
    """What the layers are to do in the running step; all layers share one.

    Args:
        prefill: tokens are being prefilled (kept aside until ``store``), not decoded.
        rows: decode: for each kind of layer (B,) int64, the row of each sequence's new token.
        prefix: prefill: (2, P) int64, sequence and row of each cached token that is read.
    """

    prefill: bool
    rows: tuple[Tensor, ...]
    prefix: Tensor

    @classmethod
    def for_prefill(cls, device: torch.device) -> CacheStep:
        """The first step of a batch, with nothing cached."""
        nothing = torch.empty(2, 0, dtype=torch.int64, device=device)
        return cls(True, (), nothing)

    def to_prefill(self, prefix: Tensor) -> None:
        torch._dynamo.maybe_mark_dynamic(prefix, 1)
        self.prefill, self.prefix = True, prefix

    def to_decode(self, *rows: Tensor) -> None:
        for one in rows:
            torch._dynamo.maybe_mark_dynamic(one, 0)
        self.prefill, self.rows = False, rows


class ShardedLayer(CacheLayerMixin):
    """One layer's rows on this rank."""

    is_compileable = True
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, step: CacheStep, batch: int, rows: int, kind: int = 0) -> None:
        super().__init__()
        self.step = step
        self.kind = kind
        self.batch = batch
        self.rows = rows
        self.fresh: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for K/V (.., N, .., D) like the given ones."""
        self.keys, self.values = (
            like.new_zeros(self.batch, like.shape[1], self.rows, like.shape[-1])
            for like in (key_states, value_states)
        )
        for tensor in (self.keys, self.values):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Decode: write the new token, return all rows. Prefill: return the cached tokens, then the new."""
        if self.step.prefill:
            self.fresh = (key_states, value_states)
            if not self.is_initialized:
                return key_states, value_states
            return self._after_prefix(self.keys, key_states), self._after_prefix(self.values, value_states)
        sequences = torch.arange(self.keys.shape[0], device=key_states.device)
        rows = self.step.rows[self.kind]
        self.keys[sequences, :, rows] = key_states[:, :, 0]
        self.values[sequences, :, rows] = value_states[:, :, 0]
        return self.keys, self.values

    def _after_prefix(self, cached: Tensor, fresh: Tensor) -> Tensor:
        sequences, rows = self.step.prefix
        prefix = cached[sequences, :, rows].transpose(0, 1).unsqueeze(0)
        return torch.cat([prefix, fresh], -2)

    def take_fresh(self) -> tuple[Tensor, Tensor]:
        """K and V of the tokens just prefilled, (B, N, S, D); the layer lets go of them."""
        assert self.fresh is not None, "a prefill writes the fresh tokens"
        fresh, self.fresh = self.fresh, None
        return fresh

    def store(self, keys: Tensor, values: Tensor, sequences: Tensor, rows: Tensor) -> None:
        """Write K/V (M, N, D) of tokens to their sequences' rows, each (M,) int64."""
        if not self.is_initialized:
            self.lazy_initialization(keys.unsqueeze(-2), values.unsqueeze(-2))
        self.keys[sequences, :, rows] = keys
        self.values[sequences, :, rows] = values

    def get_seq_length(self) -> int:
        """Cached tokens that come before the new ones, as the mask is built from it."""
        if self.step.prefill:
            return self.step.prefix.shape[1]
        return self.rows - 1

    def get_mask_sizes(self, query_length: Any) -> tuple[Any, int]:
        # Before transformers 5 this is the positions of the queries.
        length = query_length.shape[0] if isinstance(query_length, Tensor) else query_length
        return self.get_seq_length() + length, 0

    def get_max_length(self) -> int:
        return self.rows - 1

    def get_max_cache_shape(self) -> int:
        return self.rows - 1


def rows_for(capacity: int) -> int:
    """Rows for ``capacity`` tokens and the spare one.

    A whole number of blocks where that takes at most a tenth more memory: operators that want pages
    get them as a view then, without a copy of the cache at each step.
    """
    for block in (128, 16):
        rows = -(-(capacity + 1) // block) * block
        if rows * 10 <= capacity * 11:
            return rows
    return capacity + 1


def sharded_cache(kinds: Sequence[int], rows: Sequence[int], step: CacheStep, batch: int) -> Cache:
    """An empty cache for ``batch`` sequences: the kind of each layer, and each kind's rows on this rank."""
    return Cache(layers=[ShardedLayer(step, batch, rows[kind], kind) for kind in kinds])


def rows_of_kind(cache: Cache, kind: int) -> int:
    """Rows of the layers of a kind, the spare one included."""
    return next(layer.rows for layer in sharded_layers(cache) if layer.kind == kind)


def sharded_layers(cache: Cache) -> list[ShardedLayer]:
    """The layers of a cache that :func:`sharded_cache` made."""
    return cast(list[ShardedLayer], cache.layers)
