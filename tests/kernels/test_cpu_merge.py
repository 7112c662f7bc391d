"""npu_attention_update and npu_ring_attention_update."""

from __future__ import annotations

from random import Random

import pytest
import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_lse
from tests.kernels.oracle.definition import attention
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.merging import merge, ring
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu
INVALID = (float("inf"), float("-inf"), float("nan"), -3.4028234663852886e38)


def update_call(draw: Draw) -> tuple[list[torch.Tensor], list[torch.Tensor], int]:
    parts, rows, dim = draw.size(1, 16), draw.size(0, 9), draw.one_of(8, 24, 64)
    dtype = draw.dtype(double=False)
    lse = [draw.normal(rows) * 5 for _ in range(parts)]
    outs = [draw.normal(rows, dim, dtype=dtype) for _ in range(parts)]
    for part, out in zip(lse, outs, strict=True):
        for row in range(rows):
            if draw.size(0, 3) == 0:
                part[row] = draw.one_of(*INVALID)
                out[row] = draw.one_of(0.0, float("nan"))
    return lse, outs, draw.size(0, 1)


@EXAMPLES
def test_attention_update_is_the_weighted_sum(examples: int) -> None:
    def check(call: tuple[list[torch.Tensor], list[torch.Tensor], int]) -> None:
        lse, outs, update_type = call
        want, want_lse = merge(lse, outs)
        out, lse_out = npu.npu_attention_update(lse, outs, update_type)
        assert out.dtype == outs[0].dtype
        plain = sum(
            (o * torch.exp(part.double() - want_lse).to(o.dtype)[:, None]).nan_to_num(0.0)
            for part, o in zip(lse, outs, strict=True)
        )
        assert_close(out, want, torch.as_tensor(plain))
        if update_type == 1:
            assert_lse(lse_out, want_lse, 1e-5)

    for_all(calls(update_call), examples, check)


def test_merged_halves_are_the_whole() -> None:
    draw = Draw(Random(5))
    q, k, v = draw.normal(2, 7, 16), draw.normal(1, 54, 16), draw.normal(1, 54, 24)
    keep = torch.ones(7, 54, dtype=torch.bool)
    whole, whole_lse = attention(q, k, v, 0.3, keep)
    cuts = (slice(0, 17), slice(17, 17), slice(17, 54))
    parts = [attention(q, k[:, cut], v[:, cut], 0.3, keep[:, cut]) for cut in cuts]
    outs = [out.float().flatten(0, 1) for out, _ in parts]
    lses = [lse.float().flatten() for _, lse in parts]
    out, lse = npu.npu_attention_update(lses, outs, 1)
    assert_close(out, whole.flatten(0, 1))
    assert_lse(lse, whole_lse.flatten(), 1e-5)


def test_a_lone_part_is_returned() -> None:
    out = torch.randn(3, 8)
    assert torch.allclose(npu.npu_attention_update([torch.zeros(3)], [out], 0)[0], out)


def ring_call(draw: Draw) -> dict[str, object]:
    layout = draw.one_of("SBH", "TND")
    softmax_layout = draw.one_of("", "SBH", "TND")
    heads, dim, batch, tokens = draw.size(1, 3), draw.one_of(8, 16), draw.size(1, 3), draw.size(1, 6)
    lengths = [draw.size(0, 5) for _ in range(batch)]
    total = sum(lengths) if layout == "TND" else tokens * batch
    dtype = draw.dtype(double=False)
    # Logical rows: (token, head) in the order of the outputs.
    rows = total * heads
    return {
        "layout": layout,
        "softmax_layout": softmax_layout,
        "sizes": (heads, dim, batch, tokens),
        "lengths": lengths,
        "out": [draw.normal(rows, dim, dtype=dtype) for _ in range(2)],
        "maximum": [draw.normal(rows) for _ in range(2)],
        "mass": [draw.uniform(rows, low=0.5, high=9.0) for _ in range(2)],
    }


def statistic(flat: torch.Tensor, call: dict) -> torch.Tensor:
    """Logical rows (token, head) in the memory order of maxima and sums."""
    heads, _, batch, tokens = call["sizes"]
    if call["layout"] == "SBH":
        ordered = flat.view(tokens, batch, heads).permute(1, 2, 0)
    elif call["softmax_layout"] == "TND":
        ordered = flat.view(-1, heads)
    else:
        blocks = torch.split(flat.view(-1, heads), call["lengths"])
        ordered = torch.cat([block.t().flatten() for block in blocks]).view(-1, heads)
    return ordered.unsqueeze(-1).repeat_interleave(8, -1).contiguous()


@EXAMPLES
def test_ring_attention_update_follows_the_formulas(examples: int) -> None:
    def check(call: dict) -> None:
        heads, dim, batch, tokens = call["sizes"]
        shape = (tokens, batch, heads * dim) if call["layout"] == "SBH" else (-1, heads, dim)
        outs = [o.reshape(shape) if o.numel() else o.reshape(0, heads, dim) for o in call["out"]]
        maxima, masses = ([statistic(t, call) for t in call[name]] for name in ("maximum", "mass"))
        want = ring(call["out"], call["maximum"], call["mass"])
        lengths = torch.tensor([0, *call["lengths"]]).cumsum(0)
        got = npu.npu_ring_attention_update(
            outs[0], maxima[0], masses[0], outs[1], maxima[1], masses[1],
            actual_seq_qlen=lengths if call["layout"] == "TND" else None,
            input_layout=call["layout"], input_softmax_layout=call["softmax_layout"],
        )  # fmt: skip
        tops = [torch.exp(x - want[1].float()) / want[2].float() for x in call["maximum"]]
        weights = [m * top for m, top in zip(call["mass"], tops, strict=True)]
        plain = sum(o * w.to(o.dtype)[:, None] for o, w in zip(call["out"], weights, strict=True))
        assert_close(got[0].reshape(-1, dim), want[0], plain)
        assert_close(got[1], statistic(want[1], call))
        assert_close(got[2], statistic(want[2], call))

    for_all(calls(ring_call), examples, check)


@pytest.mark.parametrize("input_softmax_layout", ["", "TND"])
def test_ring_rows_without_keys_are_zero(input_softmax_layout: str) -> None:
    empty, full = torch.full((2, 1, 8), float("-inf")), torch.zeros(2, 1, 8)
    none = torch.zeros(2, 1, 8)
    ones = torch.ones(2, 1, 8)
    lengths = torch.tensor([0, 2])
    options = {
        "input_layout": "TND",
        "input_softmax_layout": input_softmax_layout,
        "actual_seq_qlen": lengths,
    }
    first, second = torch.randn(2, 1, 64), torch.randn(2, 1, 64)
    out, _, _ = npu.npu_ring_attention_update(first, empty, none, second, full, ones, **options)
    assert torch.equal(out, second)
    out, maximum, total = npu.npu_ring_attention_update(first, empty, none, second, empty, none, **options)
    assert (out == 0).all() and torch.isneginf(maximum).all() and (total == 0).all()
