"""Judging the values of sequence lengths: the same for all operators."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .facts import proven


def per_request(ends: list[int] | None) -> list[int] | None:
    """Lengths of packed requests, from where each ends."""
    return None if ends is None else [b - a for a, b in pairwise([0, *ends])]


def out_of_range(lengths: list[int] | None, most: Any = None) -> str | None:
    """Lengths per request that are negative or above ``most``, if that is given, as a message shows them."""
    if lengths is None or all(x >= 0 and not (most is not None and proven(x > most)) for x in lengths):
        return None
    return _short(lengths) if most is None else f"{_short(lengths)}, with at most {most}"


def not_cumulative(ends: list[int] | None, total: Any) -> str | None:
    """Cumulative lengths that decrease, or don't end at ``total`` tokens."""
    if not ends:
        return None
    if ends[0] < 0 or any(a > b for a, b in pairwise(ends)):
        return f"{_short(ends)}, which decreases"
    return f"{_short(ends)}, with T {total}" if proven(ends[-1] != total) else None


def bad_block(table: Any, lengths: list[int] | None, block_size: int, blocks: Any) -> str | None:
    """A block id that ``lengths`` reach and that isn't within 0 and ``blocks``.

    ``table`` is a host tensor (B, columns) or None. The rest of a row may hold anything.
    """
    if table is None or lengths is None or not table.numel():
        return None
    low, high = table.aminmax()
    if low.item() >= 0 and high.item() < blocks:
        return None
    lengths = lengths * table.shape[0] if len(lengths) == 1 else lengths
    for row, length in zip(table.tolist(), lengths, strict=False):
        for block in row[: -(-length // block_size)]:
            if not 0 <= block < blocks:
                return f"{block}, with {blocks} blocks"
    return None


def _short(values: list[int]) -> str:
    return str(values) if len(values) <= 16 else f"[{', '.join(map(str, values[:16]))}, …]"
