"""Soft-capped attention against its definition in float64, one request, head and row after the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import npu_compile  # noqa: F401  defines torch.ops.ascend_fia
from npu_compile.kernels.causal_mask import causal_mask
from npu_compile.kernels.composed import softcap
from npu_compile.kernels.cpu.masks import UNLIMITED, mask_of

B, N, KV, D, DV = 3, 6, 2, 17, 13
SCALE, CAP = 0.7, 3.0
ATTEND = torch.ops.ascend_fia.softcap_attention
Tensor = torch.Tensor


def operands(q: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Not contiguous: heads and tokens are swapped in memory."""
    g = torch.Generator().manual_seed(q + k)
    made = [torch.randn(B, s, n, d, generator=g) * 2 for s, n, d in ((q, N, D), (k, KV, D), (k, KV, DV))]
    query, key, value = (tensor.to(dtype).transpose(1, 2) for tensor in made)
    return query, key, value


def oracle(
    q: Tensor, k: Tensor, v: Tensor, sees: Any, lengths: list[int], bias: Tensor | None = None
) -> Tensor:
    out = torch.zeros(B, N, q.shape[2], DV, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            for row in range(q.shape[2]):
                seen = [j for j in range(lengths[b]) if sees(b, row, j)]
                if not seen:
                    continue
                keys, values = k[b, n // (N // KV), seen].double(), v[b, n // (N // KV), seen].double()
                scores = CAP * torch.tanh(SCALE * keys @ q[b, n, row].double() / CAP)
                if bias is not None:
                    scores = scores + bias[b, n, row, seen].double()
                out[b, n, row] = torch.softmax(scores, 0) @ values
    return out


MODES: dict[str, tuple[dict[str, Any], Any]] = {
    "no mask": ({}, lambda row, j, shift: True),
    "causal, top left": ({"sparse_mode": 2}, lambda row, j, shift: j <= row),
    "causal, bottom right": ({"sparse_mode": 3}, lambda row, j, shift: j <= row + shift),
    "a window": (
        {"sparse_mode": 4, "pre_tokens": 4, "next_tokens": 0},
        lambda row, j, shift: row + shift - 4 <= j <= row + shift,
    ),
    "a window to both sides": (
        {"sparse_mode": 4, "pre_tokens": 3, "next_tokens": 5},
        lambda row, j, shift: row + shift - 3 <= j <= row + shift + 5,
    ),
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("queries", [1, 9, 270])
@pytest.mark.parametrize("lengths", [None, [17, 17, 17], [17, 11, 0]])
def test_every_mode(name: str, queries: int, lengths: list[int] | None) -> None:
    """270 rows are more than one chunk. Keys beyond a length are NaN and never read from the host."""
    arguments, visible = MODES[name]
    q, k, v = operands(queries, 17)
    own = lengths or [17] * B
    if lengths:
        k, v = (_spoilt(x, lengths) for x in (k, v))
    mask = causal_mask(torch.device("cpu")) if arguments else None
    given = None if lengths is None else torch.tensor(lengths)
    options = dict(num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP, **arguments)
    out, lse = ATTEND(q, k, v, atten_mask=mask, actual_seq_lengths_kv=given, **options)
    ignored = queries == 1  # as FIA does: with one query token neither mode nor tokens count
    expected = oracle(q, k, v, lambda b, row, j: ignored or visible(row, j, own[b] - queries), own)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)
    assert lse.numel() == 0


def _spoilt(x: Tensor, lengths: list[int]) -> Tensor:
    x = x.clone()
    for b, length in enumerate(lengths):
        x[b, :, length:] = float("nan")
    return x


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("queries", [1, 9])
def test_lengths_on_a_device_mask_what_lengths_on_the_host_cut_off(name: str, queries: int) -> None:
    arguments, _ = MODES[name]
    q, k, v = operands(queries, 17)
    lengths = torch.tensor([17, 11, 9])
    mask = causal_mask(torch.device("cpu")) if arguments else None
    options = dict(num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP, **arguments)
    expected, _ = ATTEND(q, k, v, atten_mask=mask, actual_seq_lengths_kv=lengths, **options)
    tokens = (arguments.get("pre_tokens", UNLIMITED), arguments.get("next_tokens", UNLIMITED))
    meaning = mask_of(mask, arguments.get("sparse_mode", 0), *tokens, queries == 1, rope=False)
    hidden = softcap._hidden(lengths, meaning, queries, 17)
    attend = partial(softcap.attend, softcap=CAP)
    torch.testing.assert_close(attend(q, k, v, SCALE, hidden=hidden)[0], expected)


def test_a_mask_and_a_bias_come_after_the_cap() -> None:
    q, k, v = operands(270, 17)
    hidden = torch.rand(B, 1, 270, 17, generator=torch.Generator().manual_seed(5)) > 0.6
    hidden[1, 0, 3] = True
    bias = 20 * torch.randn(B, N, 270, 17)  # far beyond what the cap leaves of a score
    options = dict(num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP, sparse_mode=1)
    out, _ = ATTEND(q, k, v, atten_mask=hidden, pse_shift=bias, **options)
    expected = oracle(q, k, v, lambda b, row, j: not hidden[b, 0, row, j], [17] * B, bias)
    # float32 holds scores around 60 to 4e-6
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    assert not out[1, :, 3].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_no_worse_than_the_plain_computation(dtype: torch.dtype) -> None:
    q, k, v = operands(9, 54, dtype)
    options = dict(num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP)
    out, _ = ATTEND(q, k, v, **options)
    assert out.dtype == dtype
    expected = oracle(q, k, v, lambda b, row, j: True, [54] * B)
    keys, values = (x.repeat_interleave(N // KV, 1) for x in (k, v))
    plain = torch.softmax(CAP * torch.tanh(SCALE * q @ keys.mT / CAP), -1, dtype=torch.float32).to(dtype)
    error = (out.double() - expected).abs().max()
    assert error <= 1.1 * ((plain @ values).double() - expected).abs().max()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"softcap": 0.0}, "softcap: 0.0 isn't positive"),
        ({"input_layout": "TND"}, "input_layout: 'TND' isn't BNSD"),
        ({"sparse_mode": 7}, "sparse_mode: 7"),
        ({"sparse_mode": 9}, "no tree masks"),
        ({"actual_seq_lengths_kv": torch.tensor([18])}, "actual_seq_lengths_kv: length 18"),
        ({"actual_seq_lengths_kv": torch.tensor([1, 2])}, "2 lengths for a batch of 3"),
    ],
)
def test_bad_input(changed: dict[str, Any], message: str) -> None:
    options = {"num_heads": N, "num_key_value_heads": KV, "scale": SCALE, "softcap": CAP, **changed}
    with pytest.raises(ValueError, match=message):
        ATTEND(*operands(9, 17), **options)


@pytest.mark.parametrize(("queries", "keys"), [(0, 17), (5, 0)])
def test_nothing_to_do(queries: int, keys: int) -> None:
    q, k, v = operands(queries, keys)
    out, _ = ATTEND(q, k, v, num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP)
    assert out.shape == (B, N, queries, DV) and not out.any()


def test_there_is_no_backward() -> None:
    q, k, v = operands(9, 17)
    with pytest.raises(RuntimeError, match="softcap_attention has no backward"):
        ATTEND(q.requires_grad_(), k, v, num_heads=N, num_key_value_heads=KV, scale=SCALE, softcap=CAP)
