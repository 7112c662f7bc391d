"""What one forward pass of a continuous batch needs to know, prepared once on the host for all layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

KEYWORD = "fia_step"
"""The keyword argument of the model's forward that carries a :class:`Step` to the cache."""


@dataclass(frozen=True)
class Gather:
    """Rows of the cache to read, request by request, and the positions among them of the step's own tokens.

    ``own`` is None where those are in the cache as well, and are read after the write. Otherwise the write
    replaces tokens that are still seen: the cache is read before it, and the step's tokens are put in.
    """

    rows: Tensor
    own: Tensor | None = None


@dataclass(frozen=True)
class Part:
    """The step for the layers of one allocator.

    ``slots`` are where the cache is written, -1 for rows of padding, ``written`` the step's tokens that go
    there (None: all). With a ``block_table`` attention reads the cache, and ``kv_lengths`` are per request.
    Without, it reads packed tensors, and they are cumulative: of the step's own tokens, or of those that
    ``gather`` reads.
    """

    slots: Tensor
    kv_lengths: Tensor
    written: Tensor | None = None
    block_table: Tensor | None = None
    gather: Gather | None = None


@dataclass(frozen=True)
class Step:
    """``query_lengths`` are cumulative; ``decode`` says that every request has one token.

    Length tensors are on the host, the others on the cache's device.
    """

    query_lengths: Tensor
    decode: bool
    parts: tuple[Part, ...]
