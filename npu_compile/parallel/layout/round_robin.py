"""round robin: token i of a packed batch is computed on rank i mod R."""

from __future__ import annotations

from torch import Tensor

from npu_compile.errors import AscendFiaError

from .checks import check_ranks


def shard(tokens: Tensor, ranks: int, rank: int) -> Tensor:
    """Rows rank, rank + R, ... of ``tokens`` (T, ...). Raises AscendFiaError unless R divides T."""
    check_ranks(ranks, rank)
    _check_divides(tokens.shape[0], ranks)
    return tokens[rank::ranks]


def restore(gathered: Tensor, ranks: int) -> Tensor:
    """The packed batch (T, ...) from the rank-major rows that an all-gather returns."""
    check_ranks(ranks)
    _check_divides(gathered.shape[0], ranks)
    return gathered.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(0, 1)


def _check_divides(tokens: int, ranks: int) -> None:
    if tokens % ranks:
        raise AscendFiaError("tokens", tokens, f"round robin over {ranks} ranks needs a multiple of {ranks}")
