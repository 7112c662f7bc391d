"""Copies that the passes look through (repeated heads, casts, masks, sinks, scales) and that are written to.

The value that counts is the written one, whoever writes: an operator in place, a view, an operator of another
library that returns nothing, one that takes lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import npu_compile
from tests.passes.graphs import random

B, N, KV, Q, K, D = 2, 4, 2, 5, 12, 16


@torch.library.custom_op("test_written_copies::fill", mutates_args={"written"})
def fill(written: Tensor, number: float) -> None:
    """The form of a ``reshape_and_cache``: it writes to a part, and returns nothing."""
    written[..., :1].fill_(number)


def by_view(x: Tensor) -> None:
    x[:, 1] = 0.5


def by_list(x: Tensor) -> None:
    torch._foreach_mul_([x], 2.0)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a view": by_view,
    "a transposed view": lambda x: x.transpose(0, 1)[0].mul_(3),
    "all of it": lambda x: x.mul_(2),
    "another library": lambda x: fill(x, 0.5),
    "a list": by_list,
}


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.3).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.tanh((q @ k.mT) * 0.3).softmax(-1) @ v


REPEATS: dict[str, Callable[[Tensor], Tensor]] = {
    "interleaved": lambda x: x[:, :KV].repeat_interleave(2, 1),
    "merged": lambda x: x[:, :KV, None].expand(B, KV, 2, K, D).reshape(B, N, K, D),
    "one head": lambda x: x[:, :1].repeat(1, N, 1, 1),
    "interleaved, tokens first": lambda x: x[:, :KV].transpose(1, 2).repeat_interleave(2, 2).transpose(1, 2),
}


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return random(B, N, Q, D), random(B, N, K, D, seed=1), random(B, N, K, D, seed=2)


def check(program: Callable[..., Any], atol: float = 1e-5) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        expected = program(*qkv())
        actual = torch.compile(program, backend="ascend_fia")(*qkv())
    for got, want in zip(_listed(actual), _listed(expected), strict=True):
        torch.testing.assert_close(got, want, atol=atol, rtol=0)
        assert got.stride() == want.stride()
    assert npu_compile.last_report().sites
    assert not [note for graph in npu_compile.last_report().graphs for note in graph.notes if "fault" in note]


def _listed(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand, capped])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("repeat", REPEATS)
def test_repeated_heads(attend: Callable[..., Tensor], write: str, repeat: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = REPEATS[repeat](k), REPEATS[repeat](v)
        WRITES[write](keys)
        return attend(q, keys, values)

    check(program)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("which", [0, 1])
def test_casts_of_halves(which: int, write: str) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = [q.half().float(), k.half().float()]
        WRITES[write](operands[which])
        return ((operands[0] @ operands[1].mT) * 0.3).softmax(-1).half() @ v.half()

    check(program, atol=2e-3)


def scale(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    factor = torch.full((1, N, 1, 1), 0.5).clone()
    write(factor)
    return ((q @ k.mT) * factor).softmax(-1) @ v


def number(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    factor = torch.full((1, 1, 1, 1), 0.5)
    fill(factor, 2.0)
    return ((q @ k.mT) * factor).softmax(-1) @ v


def transposed_keys(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    keys = k.mT.contiguous()
    write(keys)
    return (q @ keys).softmax(-1) @ v


def cloned_keys(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    keys = k.clone()
    write(keys)
    return F.scaled_dot_product_attention(q, keys, v)


def sink(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    column = torch.zeros(1, N, 1, 1).expand(B, N, Q, 1).clone()
    write(column)
    return torch.cat([q @ k.mT, column], -1).softmax(-1)[..., :-1] @ v


def mask(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    added = torch.zeros(B, N, Q, K).clone()
    write(added)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=added)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("program", [scale, number, transposed_keys, cloned_keys, sink, mask])
def test_what_else_is_looked_through(program: Callable[..., Tensor], write: str) -> None:
    check(lambda q, k, v: program(q, k, v, WRITES[write]))


def added_after(out: Tensor) -> Any:
    rows = out.reshape(-1, D)
    out.add_(1)
    return rows


def zeroed_after(out: Tensor) -> Any:
    rows = out.flatten(0, 1)
    out.zero_()
    return rows


def merged_then_scaled(out: Tensor) -> Any:
    merged = out.transpose(1, 2).reshape(B, Q, -1)
    out.mul_(2)
    return merged, out.flatten(2)


def listed(out: Tensor) -> Any:
    rows = out.reshape(-1, D)
    torch._foreach_add_([out], 1.0)
    return rows, out


def by_another_library(out: Tensor) -> Any:
    rows = out.reshape(-1, D)
    fill(out, 3.0)
    return rows, out


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bqhd", ((q @ k.mT) * 0.3).softmax(-1), v).transpose(1, 2)


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, by_hand, capped, einsum])
@pytest.mark.parametrize("read", [added_after, zeroed_after, merged_then_scaled, listed, by_another_library])
def test_writes_to_the_output_itself(attend: Callable[..., Tensor], read: Callable[[Tensor], Any]) -> None:
    """What was a view of it stays one, and a copy stays a copy."""
    check(lambda q, k, v: read(attend(q, k, v)))


@pytest.mark.parametrize(("queries", "keys"), [(0, K), (Q, 0)])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("attend", [by_hand, capped])
def test_nothing_to_attend(attend: Callable[..., Tensor], dynamic: bool, queries: int, keys: int) -> None:
    q, k, v = qkv()
    inputs = q[:, :, :queries], k[:, :, :keys], v[:, :, :keys]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(attend, backend="ascend_fia", dynamic=dynamic)
        torch.testing.assert_close(compiled(*inputs), attend(*inputs))
    (site,) = npu_compile.last_report().sites
    assert site.reason == "there are no queries or no keys"
