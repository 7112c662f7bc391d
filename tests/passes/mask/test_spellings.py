"""The same masks in the spellings of many programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.passes.mask.tracing import Result, program, run, trace

B, N, Q, K = 2, 4, 5, 9
SIZES = (B, N, Q, K)
PAST = K - Q
INF = float("inf")
MINIMUM = torch.finfo(torch.float32).min


def check(function: Callable[..., Tensor], *inputs: Tensor) -> Result:
    found = run(trace(function, *inputs), SIZES)
    (mask,) = found.masks
    scores, values = torch.randn(SIZES), torch.randn(B, N, K, 3)
    torch.testing.assert_close(
        found.attention(scores, values), program(scores, mask, values), rtol=0, atol=2e-6
    )
    keep = mask if mask.dtype == torch.bool else mask == 0
    assert torch.equal(found.keep, keep.expand(SIZES)) and found.bias is None
    return found


def padding() -> Tensor:
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 7:] = False
    return mask


def square_subsequent() -> Tensor:
    """torch.nn.Transformer, in its older spelling."""
    ones = (torch.triu(torch.ones(K, K)) == 1).transpose(0, 1)
    mask = ones.float().masked_fill(ones == 0, -INF).masked_fill(ones == 1, 0.0)
    return mask[PAST:]


def made_causal() -> Tensor:
    """Hugging Face before masking_utils: fill the triangle in place, put zeros for the past in front."""
    mask = torch.full((Q, Q), MINIMUM)
    place = torch.arange(Q)
    mask.masked_fill_(place < (place + 1).view(Q, 1), 0)
    mask = torch.cat([torch.zeros(Q, PAST), mask], dim=-1)
    return mask[None, None].expand(B, 1, Q, K)


CAUSAL: dict[str, Callable[[], Tensor]] = {
    "triu of -inf": lambda: torch.full((Q, K), -INF).triu(1 + PAST),
    "triu of the minimum, in place": lambda: torch.full((Q, K), MINIMUM).triu_(1 + PAST)[None, None],
    "tril of bools": lambda: torch.ones(Q, K, dtype=torch.bool).tril(PAST)[None, None],
    "rows of a square": lambda: torch.tril(torch.ones(K, K, dtype=torch.bool)).view(1, 1, K, K)[
        :, :, PAST:K, :K
    ],
    "not triu": lambda: ~torch.triu(torch.ones(Q, K, dtype=torch.bool), diagonal=PAST + 1),
    "triu of ones times -inf, filled": lambda: torch.zeros(Q, K).masked_fill(
        torch.ones(Q, K).triu(PAST + 1).bool(), -INF
    ),
    "square subsequent mask": square_subsequent,
    "zeros in front of a triangle": made_causal,
    "true in front of a triangle": lambda: F.pad(
        torch.ones(Q, Q, dtype=torch.bool).tril(), (PAST, 0), value=True
    ),
    "logarithm of ones": lambda: torch.ones(Q, K).tril(PAST).log(),
    "select of two numbers": lambda: torch.where(
        torch.arange(K) <= torch.arange(PAST, K)[:, None], 0.0, -INF
    ),
    "repeated": lambda: (torch.arange(K)[None, None] <= torch.arange(PAST, K)[None, :, None]).repeat(B, 1, 1)[
        :, None
    ],
    "strictly below the next": lambda: torch.arange(K).lt(torch.arange(PAST + 1, K + 1).unsqueeze(1)),
    "differences": lambda: torch.arange(PAST, K).view(-1, 1) - torch.arange(K).view(1, -1) >= 0,
}


@pytest.mark.parametrize("spelling", CAUSAL)
def test_causal(spelling: str) -> None:
    found = check(CAUSAL[spelling])
    assert found.meaning.words == f"causal from position {PAST}"
    assert (found.plan.sparse_mode, found.plan.atten_mask, found.plan.lengths) == (3, "causal", None)


WINDOW: dict[str, Callable[[], Tensor]] = {
    "tril minus tril": lambda: torch.bitwise_xor(
        torch.ones(Q, K, dtype=torch.bool).tril(PAST), torch.ones(Q, K, dtype=torch.bool).tril(PAST - 3)
    ),
    "tril and triu": lambda: torch.ones(Q, K, dtype=torch.bool).tril(PAST).triu(PAST - 2),
    "distance below 3": lambda: (
        (torch.arange(PAST, K)[:, None] - torch.arange(K) < 3)
        & (torch.arange(PAST, K)[:, None] >= torch.arange(K))
    ),
    "sum of two triangles": lambda: (
        torch.full((Q, K), -INF).triu(PAST + 1) + torch.full((Q, K), -INF).tril(PAST - 3)
    ),
}


@pytest.mark.parametrize("spelling", WINDOW)
def test_window(spelling: str) -> None:
    found = check(WINDOW[spelling])
    assert found.meaning.words == f"causal from position {PAST}, window 3"
    assert (found.plan.sparse_mode, found.plan.pre_tokens, found.plan.next_tokens) == (4, 2, 0)


PADDED: dict[str, Callable[[Tensor], Tensor]] = {
    "two conditions": lambda p: p[:, None, None, :] & torch.ones(Q, K, dtype=torch.bool).tril(PAST),
    "logical_and, expanded": lambda p: torch.logical_and(
        p.view(B, 1, 1, K).expand(B, 1, Q, K), torch.ones(Q, K, dtype=torch.bool).tril(PAST)
    ),
    "product of numbers": lambda p: (
        (1.0 - (torch.ones(Q, K).tril(PAST)[None, None] * p[:, None, None, :].float())) * MINIMUM
    ),
    "inverted and filled": lambda p: (
        torch.zeros(B, 1, Q, K)
        .masked_fill(~p[:, None, None, :], -INF)
        .masked_fill(torch.ones(Q, K, dtype=torch.bool).triu(PAST + 1), -INF)
    ),
    "equal to one": lambda p: (p.long()[:, None, None] == 1) & (torch.ones(Q, K).tril(PAST) > 0.5),
    "any masked": lambda p: ~(~p[:, None, None, :] | torch.ones(Q, K, dtype=torch.bool).triu(PAST + 1)),
    "gathered": lambda p: (
        p[torch.arange(B)[:, None, None, None], torch.arange(K)]
        & torch.ones(Q, K, dtype=torch.bool).tril(PAST)
    ),
    "half precision and back": lambda p: torch.where(
        p[:, None, None, :] & torch.ones(Q, K, dtype=torch.bool).tril(PAST),
        torch.zeros((), dtype=torch.bfloat16),
        torch.finfo(torch.bfloat16).min,
    ).float(),
}


@pytest.mark.parametrize("spelling", PADDED)
def test_causal_and_padding(spelling: str) -> None:
    found = check(PADDED[spelling], padding())
    assert found.meaning.words == f"causal from position {PAST}, padding mask input p_1"
    assert found.lengths == [7, K] and found.plan.atten_mask == "explicit"


def test_a_mask_in_front_of_a_padding_mask() -> None:
    """Prefix tokens that everyone sees: a condition on the index guards the gathered element."""

    def mask(p: Tensor) -> Tensor:
        return torch.cat([torch.ones(B, 4, dtype=torch.bool), p[:, : K - 4]], dim=1)[:, None, None, :]

    found = check(mask, padding())
    assert " or " in found.meaning.words and found.plan.atten_mask == "explicit"


def test_multihead_attention_merges_masks_over_batch_and_heads() -> None:
    def mask(p: Tensor) -> Tensor:
        pad = torch.zeros_like(p, dtype=torch.float32).masked_fill_(~p, -INF)
        merged = pad.view(B, 1, 1, K).expand(-1, N, -1, -1).reshape(B * N, 1, K)
        causal = torch.full((Q, K), -INF).triu(PAST + 1).unsqueeze(0)
        return (causal + merged).view(B, N, Q, K)

    found = check(mask, padding())
    assert found.meaning.words == f"causal from position {PAST}, padding mask input p_1"
    assert found.mask is not None and found.mask.shape == (B, 1, Q, K)


def test_chunks_by_division() -> None:
    found = check(lambda: (torch.arange(K) // 3)[None] == (torch.arange(PAST, K) // 3)[:, None])
    assert found.meaning.words == "same chunk of 3"


def test_blocks_by_number() -> None:
    def mask(ids: Tensor) -> Tensor:
        return ids[:, None, PAST:, None] == ids[:, None, None, :]

    found = check(mask, torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3, 4, 4]]))
    assert found.meaning.words == "same block"


def test_nothing_is_masked() -> None:
    for build in (lambda: torch.zeros(Q, K), lambda: torch.ones(B, 1, Q, K, dtype=torch.bool)):
        found = check(build)
        assert found.meaning.words == "all keys" and found.plan.sparse_mode == 0
        assert found.plan.atten_mask is None and found.plan.lengths is None
