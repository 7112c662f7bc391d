"""Lengths of batches that were worked out by hand."""

from __future__ import annotations

import pytest

from npu_compile.errors import AscendFiaError
from npu_compile.serving import AttentionState, Split, build_lengths, split_decodes


def test_padding_becomes_a_request() -> None:
    built = build_lengths([0, 1, 2, 7], [9, 4, 5], padded_tokens=8)
    assert built.query == [1, 2, 7, 8]
    assert built.kv == [9, 4, 5, 1]
    assert built.requests == 3


def test_no_padding() -> None:
    built = build_lengths([0, 3], [3])
    assert (built.query, built.kv, built.requests) == ([3], [3], 1)


@pytest.mark.parametrize(
    ("starts", "lens", "speculative", "state"),
    [
        ([0, 5, 8], [5, 3], 0, AttentionState.PREFILL_NO_CACHE),
        ([0, 5, 8], [9, 4], 0, AttentionState.PREFILL_CACHE_HIT),
        ([0, 1, 2], [9, 4], 0, AttentionState.DECODE_ONLY),
        ([0, 1, 2, 7], [9, 4, 5], 0, AttentionState.CHUNKED_PREFILL),
        ([0, 3, 5], [9, 4], 2, AttentionState.SPECULATIVE_DECODE),
    ],
)
def test_states(starts: list[int], lens: list[int], speculative: int, state: AttentionState) -> None:
    assert build_lengths(starts, lens, speculative_tokens=speculative).state is state


@pytest.mark.parametrize(
    ("starts", "lens", "padded", "message"),
    [
        ([1, 2], [5], None, "query_start_loc=.*starts with 0"),
        ([0, 2], [5, 6], None, "query_start_loc=.*which has 2"),
        ([0, 4, 2], [5, 6], None, "doesn't decrease"),
        ([0, 4], [3], None, "seq_lens=.*request 0 has 4 query tokens"),
        ([0, 4], [4], 3, "padded_tokens=3: there are 4 query tokens"),
    ],
)
def test_lengths_that_do_not_fit(
    starts: list[int], lens: list[int], padded: int | None, message: str
) -> None:
    with pytest.raises(AscendFiaError, match=message):
        build_lengths(starts, lens, padded)


@pytest.mark.parametrize(
    ("lens", "threshold", "uniform", "split"),
    [
        ([1, 1, 5], 1, False, Split(2, 1, 2, 5)),
        ([1, 1], 1, False, Split(2, 0, 2, 0)),
        ([5, 17], 1, False, Split(0, 2, 0, 22)),
        ([2, 1, 3, 9], 3, False, Split(3, 1, 6, 9)),
        ([2, 2, 1, 9], 3, True, Split(2, 2, 4, 10)),
        ([9, 9], 3, True, Split(0, 2, 0, 18)),
    ],
)
def test_decodes_come_first(lens: list[int], threshold: int, uniform: bool, split: Split) -> None:
    assert split_decodes(lens, threshold, uniform) == split


def test_a_late_decode() -> None:
    with pytest.raises(AscendFiaError, match=r"query_lens=\[1, 5, 1\]: .*request 2 follows a prefill"):
        split_decodes([1, 5, 1])
