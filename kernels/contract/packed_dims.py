"""Head dims and head counts that packed layouts (T) take on devices, without a rope part (op-plugin docs)."""

from __future__ import annotations

from ..layouts import Size
from .facts import proven

PACKED_HEAD_DIMS = {
    "TND": ((64, 64), (128, 128), (192, 128), (192, 192)),
    "TND_NTD": ((64, 64), (128, 128), (192, 128), (192, 192)),
    "NTD": ((64, 64), (128, 128), (192, 128)),
    "NTD_TND": ((128, 128), (192, 128)),
}
"""Head dims of query (and key) and of value."""


def wrong_dims(layout: str, query: Size, value: Size) -> bool:
    """Whether no pair that ``layout`` takes can be these head dims."""
    return all(proven(query != q) or proven(value != v) for q, v in PACKED_HEAD_DIMS[layout])


def wrong_sharing(query: Size, heads: Size, kv_heads: Size) -> bool:
    """D 64 takes a K/V head per query head only."""
    return proven(query == 64) and heads != kv_heads


def wrong_wide_value(value: Size, heads: Size, kv_heads: Size, paged: bool) -> bool:
    """V 192 takes neither shared K/V heads nor paged keys."""
    return proven(value == 192) and (paged or heads != kv_heads)


def packs(layout: str, query: Size, value: Size, heads: Size, kv_heads: Size, paged: bool = False) -> bool:
    """Whether a device may take a packed call of these head dims and counts."""
    return not (
        wrong_dims(layout, query, value)
        or wrong_sharing(query, heads, kv_heads)
        or wrong_wide_value(value, heads, kv_heads, paged)
    )
