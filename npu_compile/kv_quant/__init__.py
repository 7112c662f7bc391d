"""C8: keys and values cached as int8, half the memory of bfloat16, read by the operator as they are."""

from __future__ import annotations

from .calibrate import calibrate_kv
from .int8 import dequantise, quantise
from .scales import Int8KV, KVScales, LayerScales
from .static_cache import Int8StaticCache

__all__ = [
    "Int8KV",
    "Int8StaticCache",
    "KVScales",
    "LayerScales",
    "calibrate_kv",
    "dequantise",
    "quantise",
]
