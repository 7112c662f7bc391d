"""Length arguments of the attention operators, read into plain ints.

torch_npu takes lengths as lists of ints or as 1-D integer tensors. Batch-first layouts give the valid length
of each request; packed layouts (TND, NTD) give the end of each request: a cumulative sum without leading 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..lengths import INTEGERS

Lengths = Sequence[int] | Tensor


def host_ints(name: str, lengths: Lengths) -> list[int]:
    """``lengths`` as a list of non-negative ints.

    Raises TypeError for floats, bools and tensors that aren't 1-D, ValueError for a negative length.
    """
    if isinstance(lengths, Tensor):
        if lengths.dim() != 1 or lengths.dtype not in INTEGERS:
            form = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
            raise TypeError(f"{name}: a length tensor is 1-D and integer, got {form}")
        lengths = lengths.tolist()
    values = list(lengths)
    for value in values:
        if type(value) is not int:
            raise TypeError(f"{name}: lengths are ints, got {value!r} in {values}")
        if value < 0:
            raise ValueError(f"{name}: lengths can't be negative, got {value} in {values}")
    return values


def per_request(name: str, lengths: Lengths | None, batch: int, capacity: int) -> list[int]:
    """The valid length of each of ``batch`` requests, at most ``capacity``.

    None means that all ``capacity`` positions are valid. One element holds for every request; of a list
    longer than the batch the first ``batch`` are used; any other count is refused (torch_npu docs).
    """
    if lengths is None:
        return [capacity] * batch
    values = host_ints(name, lengths)
    if len(values) == 1:
        values = values * batch
    if len(values) < batch:
        raise ValueError(f"{name}: {len(values)} lengths for a batch of {batch}: give 1 or at least {batch}")
    values = values[:batch]
    if batch and max(values) > capacity:
        raise ValueError(f"{name}: length {max(values)} is longer than the {capacity} positions there are")
    return values


def cumulative(name: str, lengths: Lengths | None, total: int) -> list[tuple[int, int]]:
    """``(start, end)`` of each request in a packed axis of ``total`` tokens.

    The ends don't decrease and the last is ``total``: tokens that belong to no request are refused, as the
    operator does (error 561002).
    """
    if lengths is None:
        raise ValueError(f"{name}: packed layouts (TND, NTD) need the cumulative lengths, got None")
    ends = host_ints(name, lengths)
    starts = [0, *ends[:-1]]
    if any(end < start for start, end in zip(starts, ends, strict=True)):
        raise ValueError(f"{name}: cumulative lengths can't decrease, got {ends}")
    last = ends[-1] if ends else 0
    if last != total:
        raise ValueError(f"{name}: the last cumulative length is {last}, the tensor holds {total} tokens")
    return list(zip(starts, ends, strict=True))
