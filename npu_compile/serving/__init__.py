"""Small pieces for serving engines with paged K/V caches; see docs/serving.md."""

from __future__ import annotations

from .cache_writes import slots_of, write_kv, write_kv_functional
from .connector import KVConnector
from .lengths import AttentionState, BatchLengths, build_lengths
from .pool import PagedKVPool
from .split import Split, split_decodes

__all__ = [
    "AttentionState",
    "BatchLengths",
    "KVConnector",
    "PagedKVPool",
    "Split",
    "build_lengths",
    "slots_of",
    "split_decodes",
    "write_kv",
    "write_kv_functional",
]
