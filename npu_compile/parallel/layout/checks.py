"""What every layout asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from npu_compile.errors import AscendFiaError


def check_ranks(ranks: int, rank: int | None = None) -> None:
    if ranks < 1:
        raise AscendFiaError("ranks", ranks, "must be at least 1")
    if rank is not None and not 0 <= rank < ranks:
        raise AscendFiaError("rank", rank, f"must be in [0, {ranks})")


def check_lengths(name: str, lengths: Sequence[int]) -> None:
    """Raises :class:`AscendFiaError` unless ``lengths`` are ints that are not negative."""
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise AscendFiaError(name, length, "a length must be an int that is not negative")


def check_interleave(interleave: int) -> None:
    if interleave < 1:
        raise AscendFiaError("interleave", interleave, "must be at least 1")
