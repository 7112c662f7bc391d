"""Writes through views of what attention reads and returns happen where the program does them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import npu_compile
from tests.passes.graphs import random

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Write = Callable[[Tensor], object]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def written_item(x: Tensor) -> None:
    x[:, :, 3] = 7


WRITES: dict[str, Write] = {
    "item": written_item,
    "scaled": lambda x: x[:, 1].mul_(3),
    "copied": lambda x: x[..., :4].copy_(x[..., 4:8].flip(-1)),
    "indexed": lambda x: x.transpose(1, 2).index_copy_(
        1, torch.tensor([2]), x[:, :, 4:5].transpose(1, 2) * 2
    ),
    "piece": lambda x: x.chunk(2, -1)[1].zero_(),
    "detached": lambda x: x.detach()[:, :, 1].relu_(),
}
COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "to": lambda x: x.to(x.dtype, copy=True),
    "rolled": lambda x: x.roll(1, 2).clone(),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return random(2, 3, 7, 16), random(2, 3, 7, 16, seed=1), random(2, 3, 7, 16, seed=2)


def check(program: Attention) -> None:
    with torch.no_grad():
        got = torch.compile(program, backend="ascend_fia")(*qkv())
        torch.testing.assert_close(got, program(*qkv()), atol=1e-5, rtol=0)
    assert len(npu_compile.last_report().sites) > 0


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand], ids=["sdpa", "by_hand"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("written", [0, 1, 2], ids=["query", "key", "value"])
def test_a_copy_that_is_written_to_is_not_its_source(attend: Attention, write: str, written: int) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = [q, k, v]
        operands[written] = operands[written].clone()
        WRITES[write](operands[written])
        return attend(*operands)

    check(program)


@pytest.mark.parametrize("copy", COPIES)
def test_every_way_to_copy(copy: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        v = COPIES[copy](v)
        v[:, :, -1:] = q[:, :, :1]
        return F.scaled_dot_product_attention(q, k, v)

    check(program)


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand], ids=["sdpa", "by_hand"])
@pytest.mark.parametrize("write", WRITES)
def test_writes_to_the_result_stay(attend: Attention, write: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = attend(q, k, v)
        WRITES[write](out)
        return out

    check(program)


def test_a_second_attention_reads_the_written_result() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v)
        out[:, 0] = 0
        again = F.scaled_dot_product_attention(out, k, v)
        again[:, :, 2].mul_(2)
        return out + again

    check(program)


def test_sdpa_under_vmap_gives_0_where_no_key_is_left() -> None:
    keep = torch.ones(7, 7, dtype=torch.bool).tril()
    keep[2] = False

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.vmap(lambda *each: F.scaled_dot_product_attention(*each, attn_mask=keep))(q, k, v)

    check(program)
    assert torch.equal(program(*qkv())[:, :, 2], torch.zeros(2, 3, 16))
