"""What a caller gets of a captured graph's results, whose memory the next replay overwrites.

Results of their own are copied out. A result that is an input, or a view of one, is that input or view, as
it is when the graph runs uncaptured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Output = Callable[[Sequence[Any], Any], Any]
"""From the call's arguments and the graph's result to what the caller gets."""


def plan_outputs(args: Sequence[Any], bound: Sequence[Any], results: Sequence[Any]) -> list[Output]:
    """How each of the graph's ``results`` is handed out.

    ``args`` are the arguments of the call that captured, ``bound`` what the graph was captured with.
    """
    owners: dict[int, int] = {}
    for index, value in enumerate(bound):
        if isinstance(value, Tensor) and value.numel():
            owners.setdefault(value.untyped_storage().data_ptr(), index)
    return [_output(args, bound, result, owners) for result in results]


def _output(args: Sequence[Any], bound: Sequence[Any], result: Any, owners: dict[int, int]) -> Output:
    if not isinstance(result, Tensor):
        return lambda _, value: value
    owner = owners.get(result.untyped_storage().data_ptr()) if result.numel() else None
    if owner is None:
        return lambda _, value: value.clone()
    if _same_view(result, bound[owner]):
        return lambda args, _: args[owner]
    if args[owner] is bound[owner]:
        return lambda args, value: args[owner].as_strided(
            value.size(), value.stride(), value.storage_offset()
        )
    return lambda _, value: value.clone()


def _same_view(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape, a.stride(), a.storage_offset()) == (
        b.dtype,
        b.shape,
        b.stride(),
        b.storage_offset(),
    )
