"""Masks that lie behind views, scales and zeroed probabilities, against float64 loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.sites import lower
from npu_compile.passes.recognise import recognise
from npu_compile.passes.verify import verify
from tests.passes.graphs import aten_graph, random

B, N, Q, K, D = 2, 3, 5, 17, 16
LOWEST = torch.finfo(torch.float32).min
Tensor = torch.Tensor


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return random(B, N, Q, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2)


def dropped() -> Tensor:
    """(B, 1, Q, K) bool, True where masked out; one row keeps nothing."""
    mask = torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(3)) > 0.7
    mask[1, :, 2] = True
    return mask


def oracle(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, drop: Tensor) -> Tensor:
    """Rows that keep nothing are 0."""
    out = torch.zeros(B, N, Q, D, dtype=torch.float64)
    bias, drop = bias.expand(B, N, Q, K).double(), drop.expand(B, N, Q, K)
    for b in range(B):
        for n in range(N):
            for i in range(Q):
                kept = ~drop[b, n, i]
                if kept.any():
                    scores = k[b, n, kept].double() @ q[b, n, i].double() + bias[b, n, i, kept]
                    out[b, n, i] = scores.softmax(-1) @ v[b, n, kept].double()
    return out


ZEROED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "finite": lambda s, m: s.masked_fill(m, LOWEST).softmax(-1).masked_fill(m, 0.0),
    "-inf": lambda s, m: s.masked_fill(m, -float("inf")).softmax(-1).masked_fill(m, 0.0),
    "the mask made twice, zero as a tensor": lambda s, m: (
        s.masked_fill(m == torch.tensor(True), torch.tensor(-float("inf")))
        .softmax(-1)
        .masked_fill(m == torch.tensor(True), torch.tensor(0.0))
    ),
    "scaled after the mask": lambda s, m: (s * 4).masked_fill(m, LOWEST).div(4).softmax(-1).masked_fill(m, 0),
}


def lowered(function: Callable[..., Tensor], *tensors: Tensor) -> torch.fx.GraphModule:
    ensure_graph_ops()
    module = aten_graph(function, *tensors)
    (outcome,) = lower(module, recognise(module.graph), Target.CPU)
    assert outcome.lowered, outcome.reason
    verify(module.graph)
    return module


@pytest.mark.parametrize("spelling", ZEROED)
def test_zeroed_probabilities_leave_empty_rows_0(spelling: str) -> None:
    tensors = (*inputs(), dropped())
    module = lowered(lambda q, k, v, m: ZEROED[spelling](q @ k.mT, m) @ v, *tensors)
    wanted = oracle(*tensors[:3], torch.zeros(()), tensors[3])
    torch.testing.assert_close(module(*tensors).double(), wanted, atol=1e-5, rtol=0)


def test_zeroed_probabilities_beside_a_bias_made_of_weights() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor, table: Tensor) -> Tensor:
        bias = table @ table[:, :1, :K].mT
        scores = (q @ k.mT + bias).masked_fill(m, LOWEST)
        return scores.softmax(-1).masked_fill(m, 0.0) @ v

    tensors = (*inputs(), dropped(), random(N, Q, K, seed=5) / 4)
    table = tensors[4].double()
    module = lowered(attend, *tensors)
    wanted = oracle(*tensors[:3], table @ table[:, :1].mT, tensors[3])
    torch.testing.assert_close(module(*tensors).double(), wanted, atol=1e-5, rtol=0)


def test_zeroed_where_one_of_two_masks_is_left_alone() -> None:
    """A row that the two masks empty together is uniform before it is zeroed in part."""

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(torch.ones(Q, K).triu(1) > 0, LOWEST).masked_fill(m, LOWEST)
        return scores.softmax(-1).masked_fill(m, 0.0) @ v

    ensure_graph_ops()
    module = aten_graph(attend, *inputs(), dropped())
    (outcome,) = lower(module, recognise(module.graph), Target.CPU)
    assert "one of several" in str(outcome.reason)


def test_a_bool_mask_that_is_added_counts_1() -> None:
    tensors = (*inputs(), dropped())
    module = lowered(lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, *tensors)
    wanted = oracle(*tensors[:3], tensors[3], torch.zeros((), dtype=torch.bool))
    torch.testing.assert_close(module(*tensors).double(), wanted, atol=1e-5, rtol=0)


def test_a_mask_written_to_after_its_view_is_left_alone() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = (q @ k.mT + bias) * 0.5
        bias.zero_()
        return scores.softmax(-1) @ v

    ensure_graph_ops()
    module = aten_graph(attend, *inputs(), random(B, 1, Q, K))
    (outcome,) = lower(module, recognise(module.graph), Target.CPU)
    assert "written to" in str(outcome.reason)


def test_an_added_mask_of_minus_infinity_that_is_clamped_makes_empty_rows_the_mean() -> None:
    """XGLM and OPT: the scores are at least the smallest number, so a row of -inf becomes uniform."""

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        masked = q @ k.mT + torch.zeros(()).masked_fill(m, -float("inf"))
        return torch.max(masked, torch.tensor(LOWEST)).softmax(-1) @ v

    tensors = (*inputs(), dropped())
    module = lowered(attend, *tensors)
    wanted = oracle(*tensors[:3], torch.zeros(()), tensors[3])
    wanted[1, :, 2] = tensors[2][1].double().mean(1)
    torch.testing.assert_close(module(*tensors).double(), wanted, atol=1e-5, rtol=0)
