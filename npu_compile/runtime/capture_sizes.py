"""Which batch sizes are captured, and which capture a batch runs in: pure functions, no state.

Capturing every batch size costs memory and time, so sizes thin out as they grow: powers of two up to 16,
multiples of 16 up to 256, multiples of 256 above (the policy of LMDeploy's graph runner for Ascend).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import AscendFiaError


def capture_sizes(max_batch: int, user_sizes: Iterable[int] | None = None) -> tuple[int, ...]:
    """The batch sizes to capture, ascending and without duplicates.

    ``user_sizes``, where given, are taken as they are, sorted; ``max_batch`` is then unused. Otherwise the
    sizes are those of the policy up to ``max_batch``, and ``max_batch`` itself.
    Raises :class:`AscendFiaError` for a size that isn't a positive int.
    """
    if user_sizes is not None:
        chosen = tuple(sorted({_positive("capture_sizes", size) for size in user_sizes}))
        if not chosen:
            raise AscendFiaError("capture_sizes", user_sizes, "must name at least one batch size")
        return chosen
    _positive("max_batch", max_batch)
    sizes: list[int] = []
    size = 1
    while size < max_batch:
        sizes.append(size)
        size = round_up(size + 1)
    return (*sizes, max_batch)


def round_up(batch: int) -> int:
    """The smallest size of the policy that holds ``batch`` rows."""
    if batch <= 16:
        return 1 << (batch - 1).bit_length()
    step = 16 if batch <= 256 else 256
    return -(-batch // step) * step


def select_size(sizes: Sequence[int], batch: int) -> int | None:
    """The smallest of the ascending ``sizes`` that holds ``batch`` rows; None where all are too small."""
    return next((size for size in sizes if size >= batch), None)


def _positive(argument: str, size: object) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise AscendFiaError(argument, size, "a batch size must be an int of at least 1")
    return size
