"""npu_fusion_attention: its output and the statistics of its softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_lse
from tests.kernels.oracle.definition import attention, visible
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.fia_call import TRIANGLE
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu
UNLIMITED = 2**31 - 1


@dataclass
class Call:
    """Per request: q (N, Lq, D), k and v (M, Lk, D), keep (Lq, Lk), pse (N, Lq, Lk) or None."""

    layout: str
    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    keep: list[Tensor]
    pse: list[Tensor | None]
    unused: int
    options: dict[str, Any]

    def laid_out(self, requests: list[Tensor]) -> Tensor:
        if self.layout == "TND":
            spare = torch.full((self.unused, requests[0].shape[0], requests[0].shape[2]), float("nan"))
            return torch.cat([*(r.transpose(0, 1) for r in requests), spare.to(requests[0].dtype)])
        bnsd = torch.stack(requests)
        if self.layout == "BNSD":
            return bnsd
        bsnd = bnsd.transpose(1, 2)
        if self.layout == "BSND":
            return bsnd.contiguous()
        return bsnd.flatten(2) if self.layout == "BSH" else bsnd.flatten(2).transpose(0, 1).contiguous()


def call_of(draw: Draw) -> Call:
    layout, dtype = draw.one_of("BSH", "SBH", "BSND", "BNSD", "TND"), draw.dtype(double=False)
    batch, kv_heads = draw.size(1, 3), draw.size(1, 2)
    heads, dim = kv_heads * draw.one_of(1, 2, 3), draw.one_of(8, 17, 54)
    value_dim = draw.one_of(dim, dim - 3)
    q_len, kv_len = draw.one_of(1, 3, 17), draw.one_of(1, 7, 30)
    packed = layout == "TND"
    q_lens = [draw.size(0, q_len) if packed else q_len for _ in range(batch)]
    kv_lens = [draw.size(0, kv_len) if packed else kv_len for _ in range(batch)]
    q_lens[0], kv_lens[0] = q_len, kv_len
    q = [draw.normal(heads, length, dim, dtype=dtype) for length in q_lens]
    k = [draw.normal(kv_heads, length, dim, dtype=dtype) for length in kv_lens]
    v = [draw.normal(kv_heads, length, value_dim, dtype=dtype) for length in kv_lens]
    options: dict[str, Any] = {"scale": draw.one_of(0.3, dim**-0.5)}
    mode = draw.one_of(None, 0, 1, 2, 3, 4)
    pre, following = draw.one_of(UNLIMITED, 0, 3), draw.one_of(UNLIMITED, 0, 5)
    keep = [torch.ones(a, b, dtype=torch.bool) for a, b in zip(q_lens, kv_lens, strict=True)]
    if mode is not None:
        options |= {
            "sparse_mode": mode,
            "pre_tockens": pre,
            "next_tockens": following,
            "atten_mask": TRIANGLE,
        }
        keep = [visible(mode, *size, pre, following) for size in zip(q_lens, kv_lens, strict=True)]
    if mode in (0, 1):
        shape = (q_len, kv_len) if packed else draw.one_of((q_len, kv_len), (batch, 1, q_len, kv_len))
        hide = draw.uniform(*shape) < 0.3
        options["atten_mask"] = hide.to(draw.one_of(torch.bool, torch.uint8))
        for b, kept in enumerate(keep):
            own = hide if hide.dim() == 2 else hide[b, 0]
            kept &= ~own[: kept.shape[0], : kept.shape[1]]
    pse: list[Tensor | None] = [None] * batch
    if not packed and draw.maybe():
        rows = draw.one_of(1, q_len)
        options["pse"] = draw.normal(draw.one_of(1, batch), heads, rows, kv_len, dtype=dtype)
        pse = [options["pse"][b % options["pse"].shape[0]].expand(heads, q_len, kv_len) for b in range(batch)]
    unused = 0
    if packed:
        ends = [torch.tensor(lens).cumsum(0).tolist() for lens in (q_lens, kv_lens)]
        dropped = draw.size(0, 2)  # requests at the end that don't take part
        unused = draw.size(1, 4) if dropped else 0
        options |= {
            "actual_seq_qlen": ends[0] + [0] * dropped,
            "actual_seq_kvlen": ends[1] + [0] * dropped,
            "softmax_layout": draw.one_of("", "TND"),
        }
    return Call(layout, q, k, v, keep, pse, unused, options)


def statistics(
    q: Tensor, k: Tensor, scale: float, keep: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Largest score and sum of exp(score - largest) of each row, (N, Lq)."""
    heads, q_len, _ = q.shape
    maximum = torch.full((heads, q_len), float("-inf"), dtype=torch.float64)
    total = torch.zeros(heads, q_len, dtype=torch.float64)
    for head in range(heads):
        keys = k[head * k.shape[0] // heads].double()
        for row in range(q_len):
            scores = [
                scale * float(keys[j] @ q[head, row].double())
                + (0.0 if bias is None else float(bias[head, row, j]))
                for j in range(len(keys))
                if keep[row, j]
            ]
            if scores:
                maximum[head, row] = max(scores)
                total[head, row] = torch.tensor(scores).double().sub(max(scores)).exp().sum()
    return maximum, total


def plainly(q: Tensor, k: Tensor, v: Tensor, scale: float, keep: Tensor, pse: Tensor | None) -> Tensor:
    """In torch operations of the inputs' dtype."""
    group = q.shape[0] // k.shape[0]
    scores = q @ k.repeat_interleave(group, 0).mT
    scores = (scores if pse is None else scores + pse) * scale
    weights = scores.masked_fill(~keep, float("-inf")).softmax(-1).nan_to_num(0.0)
    return weights @ v.repeat_interleave(group, 0)


def statistic_rows(got: Tensor, call: Call) -> list[Tensor]:
    """The requests' (N, Lq) of a returned statistic, whose last dim holds 8 times the same."""
    assert got.dtype == torch.float32 and got.shape[-1] == 8
    assert torch.equal(got, got[..., :1].expand_as(got))
    if call.layout != "TND":
        return list(got[..., 0])
    lengths = [q.shape[1] for q in call.q]
    if call.options["softmax_layout"] == "TND":
        return [part.t() for part in torch.split(got[: sum(lengths), :, 0], lengths)]
    heads = got.shape[1]
    flat = got[..., 0].flatten()
    parts = torch.split(flat[: sum(lengths) * heads], [length * heads for length in lengths])
    return [part.view(heads, length) for part, length in zip(parts, lengths, strict=True)]


def outputs(got: Tensor, call: Call) -> list[Tensor]:
    """The requests' (N, Lq, Dv) of an output."""
    heads = call.q[0].shape[0]
    if call.layout == "TND":
        lengths = [q.shape[1] for q in call.q]
        assert (got[sum(lengths) :] == 0).all(), "tokens of no request aren't 0"
        return [part.transpose(0, 1) for part in torch.split(got[: sum(lengths)], lengths)]
    if call.layout == "BNSD":
        return list(got)
    if call.layout in ("BSH", "SBH"):
        got = (got if call.layout == "BSH" else got.transpose(0, 1)).unflatten(-1, (heads, -1))
    return list(got.transpose(1, 2))


@EXAMPLES
def test_output_and_statistics(examples: int) -> None:
    def check(call: Call) -> None:
        heads, scale = call.q[0].shape[0], call.options["scale"]
        tensors = [call.laid_out(part) for part in (call.q, call.k, call.v)]
        out, maximum, total, *rest = npu.npu_fusion_attention(*tensors, heads, call.layout, **call.options)
        assert out.dtype == tensors[0].dtype and out.is_contiguous() and rest[1:] == [0, 0, 0]
        rows = zip(
            call.q, call.k, call.v, call.keep, call.pse, outputs(out, call),
            statistic_rows(maximum, call), statistic_rows(total, call), strict=True,
        )  # fmt: skip
        for q, k, v, keep, pse, mine, top, mass in rows:
            bias = None if pse is None else pse.double() * scale
            want, _ = attention(q, k, v, scale, keep, bias)
            assert_close(mine, want, plainly(q, k, v, scale, keep, pse))
            want_top, want_mass = statistics(q, k, scale, keep, bias)
            assert_lse(top, want_top, 2e-5, "maximum")
            # The fused kernel's exponential is less exact for half precision.
            error = (mass.double() - want_mass).abs() / want_mass.clamp(min=1.0)
            assert (error <= (1e-5 if out.dtype == torch.float32 else 2e-4)).all()

    for_all(calls(call_of), examples, check)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"keep_prob": 0.5}, "keep_prob"),
        ({"sink": torch.zeros(2)}, "sink"),
        ({"sparse_mode": 6, "atten_mask": torch.zeros(3072, 2048, dtype=torch.bool)}, "sparse_mode"),
    ],
)
def test_what_has_no_reference_is_refused(options: dict[str, Any], argument: str) -> None:
    q = torch.ones(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match=argument):
        npu.npu_fusion_attention(q, q, q, 2, "BNSD", **options)
