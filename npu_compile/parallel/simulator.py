"""All ranks of a group in one process, collectives as functions.

For tests and for trying a layout out: no process group, no threads, and a mistake that would hang a
real group (ranks that ask for different collectives) is an error that says who asked for what.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from npu_compile.passes.context_parallel.collectives import (
    Algorithm,
    AllGather,
    AllToAll,
    Collective,
    Result,
)


def simulate(ranks: Sequence[Algorithm[Result]]) -> list[Result]:
    """Run one algorithm per rank in lockstep and return their results.

    Raises:
        RuntimeError: the ranks don't ask for the same collectives with the same shapes, or some
            ended while others wait: torch.distributed would hang there until its timeout.
    """
    results: dict[int, Result] = {}
    replies: list[tuple[Tensor, ...] | None] = [None] * len(ranks)
    while True:
        wanted: dict[int, tuple[Collective, ...]] = {}
        for rank, algorithm in enumerate(ranks):
            try:
                wanted[rank] = (
                    next(algorithm) if replies[rank] is None else algorithm.send(replies[rank] or ())
                )
            except StopIteration as stop:
                results[rank] = stop.value
        if len(results) == len(ranks):
            return [results[rank] for rank in range(len(ranks))]
        if results:
            raise RuntimeError(f"ranks {sorted(results)} ended while ranks {sorted(wanted)} wait for them")
        exchanged = [_exchange(batch) for batch in zip(*_alike(wanted), strict=True)]
        replies = [tuple(received[rank] for received in exchanged) for rank in range(len(ranks))]


def _alike(wanted: dict[int, tuple[Collective, ...]]) -> list[tuple[Collective, ...]]:
    described = {rank: [_describe(one) for one in batch] for rank, batch in wanted.items()}
    for rank, batch in described.items():
        if batch != described[0]:
            raise RuntimeError(f"rank {rank} asks for {batch} while rank 0 asks for {described[0]}")
    return [wanted[rank] for rank in sorted(wanted)]


def _describe(collective: Collective) -> str:
    tensor = collective.tensor
    return f"{type(collective).__name__}{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _exchange(collectives: Sequence[Collective]) -> list[Tensor]:
    """What each rank receives."""
    tensors = [collective.tensor for collective in collectives]
    if isinstance(collectives[0], AllGather):
        return [torch.cat(tensors) for _ in tensors]
    assert isinstance(collectives[0], AllToAll)
    if tensors[0].shape[0] % len(tensors):
        raise RuntimeError(f"dim 0 of {tuple(tensors[0].shape)} is not a multiple of {len(tensors)} ranks")
    parts = [tensor.chunk(len(tensors)) for tensor in tensors]
    return [
        torch.cat([parts[sender][rank] for sender in range(len(tensors))]) for rank in range(len(tensors))
    ]
