"""A batch's decodes apart from its prefills: ascend950 computes them in two calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import AscendFiaError


@dataclass(frozen=True)
class Split:
    """Requests and tokens of the decodes, which come first, and of the prefills."""

    decodes: int
    prefills: int
    decode_tokens: int
    prefill_tokens: int


def split_decodes(query_lens: Sequence[int], threshold: int = 1, require_uniform: bool = False) -> Split:
    """The leading requests with at most ``threshold`` query tokens are decodes, the others prefills.

    ``require_uniform``: decodes have as many tokens as the first one; a captured graph has one shape.
    Raises AscendFiaError where a decode follows a prefill: the two parts are slices of the batch.
    """
    lens = [int(count) for count in query_lens]
    wanted = set(lens[:1]) if require_uniform else set(range(threshold + 1))
    is_decode = [count <= threshold and count in wanted for count in lens]
    decodes = is_decode.index(False) if False in is_decode else len(lens)
    if not require_uniform and any(is_decode[decodes:]):
        late = decodes + is_decode[decodes:].index(True)
        rule = f"decodes come first, but request {late} follows a prefill"
        raise AscendFiaError("query_lens", lens, rule)
    tokens = sum(lens[:decodes])
    return Split(decodes, len(lens) - decodes, tokens, sum(lens) - tokens)
