"""What a caller gets of a captured graph's results, whose memory the next replay overwrites.

Results of their own are copied out. A result that is an input, or a view of one, is that input or view, and
results that share memory share it still: as when the graph runs uncaptured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

HandOut = Callable[[Sequence[Any], Any], Any]
"""From the call's arguments and the graph's result to what the caller gets."""


class Outputs:
    """How each of the ``results`` of a captured graph is handed out.

    ``args`` are the arguments of the call that captured, ``bound`` what the graph was captured with.
    """

    def __init__(self, args: Sequence[Any], bound: Sequence[Any], results: Sequence[Any]) -> None:
        owners: dict[int, int] = {}
        for index, value in enumerate(bound):
            if isinstance(value, Tensor) and value.numel():
                owners.setdefault(_storage(value), index)
        self._each = [_hand_out(args, bound, result, owners) for result in results]
        self._shared = _shared(results, owners)

    def hand_out(self, args: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results of a replay that was called with ``args``."""
        given = [hand_out(args, result) for hand_out, result in zip(self._each, results, strict=True)]
        for group in self._shared:
            memory = _whole_memory(results[group[0]]).clone()
            for i in group:
                given[i] = memory.as_strided(*_form(results[i]))
        return given


def _hand_out(args: Sequence[Any], bound: Sequence[Any], result: Any, owners: dict[int, int]) -> HandOut:
    if not isinstance(result, Tensor):
        return lambda _, value: value
    owner = owners.get(_storage(result)) if result.numel() else None
    if owner is None or result.dtype != bound[owner].dtype:
        return lambda _, value: value.clone()
    if _form(result) == _form(bound[owner]):
        return lambda args, _: args[owner]
    if args[owner] is bound[owner]:
        return lambda args, value: args[owner].as_strided(*_form(value))
    return lambda _, value: value.clone()


def _shared(results: Sequence[Any], owners: dict[int, int]) -> list[list[int]]:
    """Positions of the results that lie in the same memory, which isn't an input's."""
    groups: dict[tuple[Any, int], list[int]] = {}
    for i, result in enumerate(results):
        if isinstance(result, Tensor) and result.numel() and _storage(result) not in owners:
            groups.setdefault((result.dtype, _storage(result)), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _whole_memory(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()
