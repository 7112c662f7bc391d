"""How much of the scores a sparse mode leaves."""

from __future__ import annotations


def attended(queries: int, keys: int, mode: int, before: int, after: int) -> tuple[int, int]:
    """Of ``queries`` x ``keys`` scores: the pairs that take part, and the keys of which one does.

    ``mode`` is FIA's sparse_mode: 2 is causal from the top left, 3 from the bottom right, 4 a band of
    ``before`` and ``after`` tokens around the diagonal from the bottom right; others leave all (torch_npu
    docs).
    """
    if mode not in (2, 3, 4):
        return queries * keys, keys
    diagonal = 0 if mode == 2 else keys - queries
    first = before if mode == 4 else keys + queries
    last = after if mode == 4 else 0
    pairs, lowest, highest = 0, keys, 0
    for row in range(queries):
        start = max(row + diagonal - first, 0)
        stop = min(row + diagonal + last + 1, keys)
        if stop > start:
            pairs += stop - start
            lowest, highest = min(lowest, start), max(highest, stop)
    return pairs, max(highest - lowest, 0)
