"""From an engine's description of a batch to the length arguments of FIA: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from ..errors import AscendFiaError


class AttentionState(Enum):
    """What a batch consists of; the numbers are vllm-ascend's."""

    PREFILL_NO_CACHE = 0
    PREFILL_CACHE_HIT = 1
    DECODE_ONLY = 2
    CHUNKED_PREFILL = 3
    SPECULATIVE_DECODE = 4


@dataclass(frozen=True)
class BatchLengths:
    """``query`` is cumulative without leading 0, ``kv`` per request, both with the padding request.

    ``requests`` counts the real ones: the rows of the block table that an engine fills.
    """

    query: list[int]
    kv: list[int]
    requests: int
    state: AttentionState


def build_lengths(
    query_start_loc: Sequence[int],
    seq_lens: Sequence[int],
    padded_tokens: int | None = None,
    speculative_tokens: int = 0,
) -> BatchLengths:
    """Lengths for a TND call on paged keys.

    ``query_start_loc`` (B + 1) starts with 0; ``seq_lens`` (B,) counts a request's tokens in the cache, those
    of this step included. Where the query has more rows, ``padded_tokens``, they become one more request
    with one key, to be found in any block that exists: cumulative lengths have to end at the last row.
    ``speculative_tokens`` drafts are verified per request in a decode step.

    Raises AscendFiaError for lengths that don't fit each other.
    """
    starts, kv = [int(x) for x in query_start_loc], [int(x) for x in seq_lens]
    if not starts or starts[0] != 0 or len(starts) != len(kv) + 1:
        rule = f"it starts with 0 and has one element more than seq_lens, which has {len(kv)}"
        raise AscendFiaError("query_start_loc", starts, rule)
    queries = [stop - start for start, stop in pairwise(starts)]
    if any(count < 0 for count in queries):
        raise AscendFiaError("query_start_loc", starts, "it doesn't decrease")
    for request, (count, length) in enumerate(zip(queries, kv, strict=True)):
        if length < count:
            rule = f"request {request} has {count} query tokens, which are among its keys"
            raise AscendFiaError("seq_lens", kv, rule)
    state = _state(queries, kv, speculative_tokens)
    ends, requests = starts[1:], len(kv)
    padding = (padded_tokens if padded_tokens is not None else starts[-1]) - starts[-1]
    if padding < 0:
        raise AscendFiaError("padded_tokens", padded_tokens, f"there are {starts[-1]} query tokens")
    if padding:
        ends, kv = [*ends, starts[-1] + padding], [*kv, 1]
    return BatchLengths(ends, kv, requests, state)


def _state(queries: list[int], kv: list[int], speculative_tokens: int) -> AttentionState:
    cached = [length > count for count, length in zip(queries, kv, strict=True)]
    if not any(cached):
        return AttentionState.PREFILL_NO_CACHE
    if all(count == 1 for count in queries):
        return AttentionState.DECODE_ONLY
    if speculative_tokens and all(count <= 1 + speculative_tokens for count in queries) and all(cached):
        return AttentionState.SPECULATIVE_DECODE
    if all(cached) and all(count > 1 for count in queries):
        return AttentionState.PREFILL_CACHE_HIT
    return AttentionState.CHUNKED_PREFILL
