"""npu_transpose_batchmatmul."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_rounded
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu


def call_of(draw: Draw) -> dict[str, Any]:
    dtype = draw.dtype(double=False)
    rows, batch, inner, columns = (
        draw.size(0, 9),
        draw.size(1, 6),
        draw.one_of(5, 16, 54),
        draw.one_of(3, 16, 17),
    )
    tokens_first = draw.maybe()
    shape = (rows, batch, inner) if tokens_first else (batch, rows, inner)
    left = draw.normal(*shape, dtype=dtype)
    if draw.maybe():
        left = draw.normal(*shape[:2], inner + 3, dtype=dtype)[..., :inner]
    options: dict[str, Any] = {"perm_x1": [1, 0, 2] if tokens_first else draw.one_of(None, [0, 1, 2])}
    divisors = [f for f in range(1, batch * columns + 1) if batch * columns % f == 0]
    quantised = draw.size(0, 3) == 0
    if quantised:
        scale = draw.uniform(batch * columns, low=1.0, high=9.0)
        # The device takes the bits of the float32 in the low half of 64.
        options["scale"] = (
            scale.view(torch.int32).to(torch.int64).view(draw.one_of(torch.int64, torch.uint64))
        )
        options["real_scale"] = scale
    else:
        options["batch_split_factor"] = draw.one_of(1, 1, *divisors)
    weight = draw.normal(batch, inner, columns, dtype=dtype)
    return {"left": left, "weight": weight, "options": options, "tokens_first": tokens_first}


@EXAMPLES
def test_it_multiplies_each_batch_and_puts_it_second(examples: int) -> None:
    def check(call: dict[str, Any]) -> None:
        left, weight, options = call["left"], call["weight"], dict(call["options"])
        real_scale = options.pop("real_scale", None)
        got = npu.npu_transpose_batchmatmul(left, weight, **options)
        equation = "mbk,bkn->mbn" if call["tokens_first"] else "bmk,bkn->mbn"
        want = torch.einsum(equation, left.double(), weight.double())
        rows, batch, columns = want.shape
        if real_scale is not None:
            assert_rounded(got, want.reshape(rows, 1, batch * columns) * real_scale.double())
            return
        plain = torch.einsum(equation, left, weight)
        factor = options["batch_split_factor"]
        if factor > 1:
            width = batch * columns // factor
            flat, plain = want.reshape(rows, batch * columns), plain.reshape(rows, batch * columns)
            cuts = [slice(i * width, (i + 1) * width) for i in range(factor)]
            want, plain = (torch.stack([t[:, cut] for cut in cuts]) for t in (flat, plain))
        assert got.dtype == left.dtype and got.is_contiguous()
        assert_close(got, want, plain)

    for_all(calls(call_of), examples, check)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"bias": torch.zeros(3)}, "bias"),
        ({"perm_y": [0, 1, 2]}, "perm_y"),
        ({"batch_split_factor": 4}, "batch_split_factor"),
        ({"perm_x1": [1, 0, 2]}, "weight"),
    ],
)
def test_other_forms_are_refused(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(ValueError, match=argument):
        npu.npu_transpose_batchmatmul(torch.ones(2, 5, 4), torch.ones(2, 4, 3), **options)
