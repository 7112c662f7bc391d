"""CPU kernels that write and read paged K/V caches."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .lengths import host_ints
from .slots import nz_tokens, require_slots, write

MODES = (None, "Norm", "PA_NZ")


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write ``key`` (T, N, D) and ``value`` (T, N, Dv) to the caches' slots ``slot_mapping`` (T,), in place.

    ``cache_mode`` None or Norm: caches (blocks, block_size, N, D). PA_NZ, the default: (blocks, N * D / x,
    block_size, x). Slots are unique and in range. A token with slot -1 isn't written: the documents don't
    say so, the operator's published kernels do it on every device (CANN ops-transformer). Compressed caches
    (``compress_lens`` and its companions) have no documented meaning and are refused. Raises before anything
    is written.
    """
    if compress_lens is not None or compress_seq_offsets is not None or seq_lens is not None:
        raise NotImplementedError(
            "compress_lens, compress_seq_offsets, seq_lens: what they do isn't documented"
        )
    if cache_mode not in MODES:
        raise ValueError(f"cache_mode: {cache_mode!r} isn't one of None, 'Norm', 'PA_NZ'")
    nz = cache_mode == "PA_NZ"
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        _require_fit(name, rows, cache, nz)
    if key.shape[:2] != value.shape[:2] or key_cache.shape[0] != value_cache.shape[0]:
        raise ValueError(f"value: {tuple(value.shape)} doesn't go with key {tuple(key.shape)}")
    block_size = key_cache.shape[2 if nz else 1]
    slots = require_slots("slot_mapping", slot_mapping, key_cache.shape[0] * block_size, key.shape[0], True)
    for rows, cache in ((key, key_cache), (value, value_cache)):
        write(rows, nz_tokens(cache, rows.shape[1]) if nz else cache, slots)


def npu_scatter_pa_kv_cache_functional(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> tuple[Tensor, Tensor]:
    """:func:`npu_scatter_pa_kv_cache` on copies of the caches, which it returns."""
    keys, values = key_cache.clone(), value_cache.clone()
    npu_scatter_pa_kv_cache(
        key,
        value,
        keys,
        values,
        slot_mapping,
        compress_lens=compress_lens,
        compress_seq_offsets=compress_seq_offsets,
        seq_lens=seq_lens,
        cache_mode=cache_mode,
    )
    return keys, values


def npu_gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> None:
    """Read the requests' tokens one after the other into ``key`` (T, N, D) and ``value`` (T, N, Dv), in
    place.

    Caches are (blocks, block_size, N, D), or NZ (blocks, N * D / x, block_size, x) where ``key`` has two
    dims, (T, N * D). ``seq_lens`` is (B,), or (B + 1,) cumulative with a leading 0. ``seq_offset`` (B,)
    tokens at the start of a request are skipped, in whole blocks. Raises before anything is written.
    """
    lengths = _lengths(seq_lens, is_seq_lens_cumsum)
    if block_tables.dim() != 2 or block_tables.shape[0] != len(lengths):
        raise ValueError(f"block_tables: {tuple(block_tables.shape)} for {len(lengths)} requests")
    offsets = [0] * len(lengths) if seq_offset is None else host_ints("seq_offset", seq_offset)
    total = sum(lengths)
    if key.shape[0] != total or value.shape[0] != total:
        raise ValueError(f"key: {key.shape[0]} rows, value: {value.shape[0]}, but seq_lens sum to {total}")
    gathered = []
    for cache, target in ((key_cache, key), (value_cache, value)):
        nz = target.dim() == 2
        tokens = nz_tokens(cache, 1) if nz else cache
        block_size = tokens.shape[1]
        slots = torch.cat(
            [_slots(block_tables, b, length, offsets[b], block_size) for b, length in enumerate(lengths)]
            or [block_tables.new_empty(0, dtype=torch.int64)]
        )
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < cache.shape[0] * block_size:
            raise ValueError(f"block_tables: an id isn't in 0..{cache.shape[0] - 1}")
        gathered.append(tokens[slots // block_size, slots % block_size].reshape(target.shape))
    key.copy_(gathered[0])
    value.copy_(gathered[1])


def npu_gather_pa_kv_cache_functional(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> tuple[Tensor, Tensor]:
    """:func:`npu_gather_pa_kv_cache` into new tensors like ``key`` and ``value``, which it returns."""
    keys, values = torch.empty_like(key), torch.empty_like(value)
    npu_gather_pa_kv_cache(
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        keys,
        values,
        seq_offset=seq_offset,
        is_seq_lens_cumsum=is_seq_lens_cumsum,
    )
    return keys, values


def _require_fit(name: str, rows: Tensor, cache: Tensor, nz: bool) -> None:
    if rows.dim() != 3 or cache.dim() != 4 or rows.dtype != cache.dtype:
        have = f"{rows.dtype} {tuple(rows.shape)}"
        raise ValueError(f"{name}: {have} for a cache {cache.dtype} {tuple(cache.shape)}; it is (T, N, D)")
    _, heads, dim = rows.shape
    fits = cache.shape[1] * cache.shape[3] == heads * dim and dim % cache.shape[3] == 0
    if not (fits if nz else cache.shape[2:] == rows.shape[1:]):
        raise ValueError(f"{name}: {tuple(rows.shape)} doesn't fit a cache of {tuple(cache.shape)}")


def _lengths(seq_lens: Tensor, cumulative: bool) -> list[int]:
    values = host_ints("seq_lens", seq_lens)
    if not cumulative:
        return values
    steps = [stop - start for start, stop in pairwise(values)]
    if not values or values[0] != 0 or any(step < 0 for step in steps):
        raise ValueError(f"seq_lens: cumulative lengths start at 0 and don't decrease, got {values}")
    return steps


def _slots(tables: Tensor, request: int, length: int, offset: int, block_size: int) -> Tensor:
    """Slots of ``length`` tokens of one request, from the block that holds its token ``offset`` on."""
    positions = torch.arange(length, device=tables.device) + offset // block_size * block_size
    columns = positions // block_size
    if length and int(columns[-1]) >= tables.shape[1]:
        raise ValueError(
            f"block_tables: {tables.shape[1]} columns, request {request} needs {int(columns[-1]) + 1}"
        )
    return tables[request].to(torch.int64)[columns] * block_size + positions % block_size
