"""What a cache tells the attention that follows its update: where the keys and values of this call are.

A continuous batch is one row of tokens; its requests lie one after the other. ``query_lengths`` says where
each ends (FIA's cumulative TND lengths, no leading 0). Lengths are 1-D integer tensors on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

KEYWORD = "fia_kv"
"""The keyword argument that carries a view from ``cache.update`` to the attention function."""

AFTER_KEYWORD = "fia_after"
"""The keyword argument with what to call when attention has read the cache."""


@dataclass(frozen=True)
class PackedKV:
    """Keys and values are the call's own tensors, the requests' tokens one after the other.

    ``kv_lengths`` are cumulative. Request b's queries are its last tokens. ``window`` keys are seen, the
    own one included; None is all of them.
    """

    query_lengths: Tensor
    kv_lengths: Tensor
    window: int | None = None


@dataclass(frozen=True)
class Antiquant:
    """How the operator turns an int8 cache into real numbers.

    ``mode`` 0: scales per channel (N_kv, 1, D). 4: per token, (blocks, block_size). ``nz``: the blocks are
    NZ, (N_kv, D / 32, block_size, 32) each.
    """

    mode: int
    key_scale: Tensor
    value_scale: Tensor
    nz: bool = False


@dataclass(frozen=True)
class PagedKV:
    """Keys and values are in ``key_cache`` and ``value_cache``, (blocks, block_size, N_kv, D).

    ``block_table`` is (B, columns), int32; ``kv_lengths`` are per request and include this call's tokens.
    ``decode`` says that every request has one query token. An int8 cache, which ``antiquant`` comes with, is
    for decode only.
    """

    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    query_lengths: Tensor
    kv_lengths: Tensor
    decode: bool
    antiquant: Antiquant | None = None


@dataclass(frozen=True)
class LatentKV:
    """MLA: ``latent_cache`` (blocks, block_size, 1, kv_lora_rank), ``rope_cache`` (…, qk_rope_head_dim).

    The rest is as in :class:`PagedKV`.
    """

    latent_cache: Tensor
    rope_cache: Tensor
    block_table: Tensor
    query_lengths: Tensor
    kv_lengths: Tensor
    decode: bool


KVView = PackedKV | PagedKV | LatentKV
