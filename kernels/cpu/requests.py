"""The requests of one attention call, and where each lies in the (B, N, S, D) views of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .block_table import BlockTable
from .lengths import Lengths, cumulative, per_request

Range = tuple[int, int]
"""First token and the one after the last."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``stop``, entries ``first`` to ``last`` of a (B, N, S, D) view; ends exclusive."""

    first: int
    last: int
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """(last - first, N, stop - start, D), a view."""
        batch, tokens = self.last - self.first, self.stop - self.start
        if batch != tensor.shape[0]:
            tensor = tensor.narrow(0, self.first, batch)
        return tensor if tokens == tensor.shape[2] else tensor.narrow(2, self.start, tokens)

    def covers(self, tensor: Tensor) -> bool:
        """Whether nothing of ``tensor`` is outside the span."""
        return self.last - self.first == tensor.shape[0] and self.stop - self.start == tensor.shape[2]


@dataclass(frozen=True, slots=True)
class Request:
    """Requests ``first`` to ``last`` (exclusive) of the call, which have equal lengths: computed in one go.

    Paged keys have no place in a view: there ``key`` counts the request's own tokens, from 0, and ``blocks``
    names the blocks that hold them.
    """

    first: int
    last: int
    query: Span
    key: Span
    packed: bool = False
    blocks: Sequence[int] = ()

    @property
    def index(self) -> slice:
        return slice(self.first, self.last)

    @property
    def q_len(self) -> int:
        return self.query.stop - self.query.start

    @property
    def query_offset(self) -> int:
        """Left padding before the first query token."""
        return 0 if self.packed else self.query.start

    @property
    def key_offset(self) -> int:
        """Left padding before the first key."""
        return 0 if self.packed else self.key.start


@dataclass(frozen=True, slots=True)
class Sequences:
    """The length arguments of one side, queries or keys, under the name that messages use.

    ``packed``: lengths are cumulative and the tokens of all requests share one axis. ``padding``: that many
    tokens at the end of each entry belong to nobody and the valid ones lie right before them (left padding;
    negative counts as 0, and it has no effect without lengths).
    """

    name: str
    lengths: Lengths | None
    packed: bool = False
    padding: int | None = None

    def ranges(self, batch: int, capacity: int) -> list[Range]:
        """Where each request's tokens are on the token axis, which is ``capacity`` long."""
        if self.packed:
            return cumulative(self.name, self.lengths, capacity)
        lengths = per_request(self.name, self.lengths, batch, capacity)
        if self.padding is None or self.lengths is None:
            return [(0, length) for length in lengths]
        stop = capacity - max(self.padding, 0)
        if lengths and stop < max(lengths):
            raise ValueError(
                f"{self.name}: {max(lengths)} tokens and {self.padding} of padding are more than {capacity}"
            )
        return [(stop - length, stop) for length in lengths]


def one_by_one(
    queries: list[Range], keys: list[Range], packed: bool, table: BlockTable | None
) -> list[Request]:
    """A request for each pair of ranges; its paged keys are in the blocks that ``table`` names."""
    _same_count(queries, keys)
    requests = []
    for i, (query, key) in enumerate(zip(queries, keys, strict=True)):
        first = 0 if packed else i
        q_span, kv_span = Span(first, first + 1, *query), Span(first, first + 1, *key)
        blocks = () if table is None else table.of(i, key[1])
        requests.append(Request(i, i + 1, q_span, kv_span, packed, blocks))
    return requests


def together(queries: list[Range], keys: list[Range]) -> list[Request]:
    """One request for all, not packed, where all lengths are equal, else one by one."""
    _same_count(queries, keys)
    batch = len(queries)
    if batch and queries.count(queries[0]) == batch and keys.count(keys[0]) == batch:
        return [Request(0, batch, Span(0, batch, *queries[0]), Span(0, batch, *keys[0]))]
    return one_by_one(queries, keys, False, None)


def _same_count(queries: list[Range], keys: list[Range]) -> None:
    if len(queries) != len(keys):
        raise ValueError(f"query lengths of {len(queries)} requests, key lengths of {len(keys)}")
