"""Writing logical requests into the operators' layouts, token by token, and reading results back.

A request's tensor is (N, L, D). Whatever no request owns holds garbage: NaN, or 77 in integers.
"""

from __future__ import annotations

import torch
from torch import Tensor


def garbage(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else 77, dtype=dtype)


def packed(requests: list[Tensor], order: str) -> Tensor:
    """TND or NTD."""
    tokens = torch.cat([request.transpose(0, 1) for request in requests])
    return tokens.contiguous() if order == "TND" else tokens.transpose(0, 1).contiguous()


def batched(requests: list[Tensor], order: str, capacity: int, starts: list[int]) -> Tensor:
    """BSH, BSND or BNSD with room for ``capacity`` tokens; request b's first token is at ``starts[b]``."""
    heads, _, dim = requests[0].shape
    out = garbage((len(requests), capacity, heads, dim), requests[0].dtype)
    for b, request in enumerate(requests):
        for token in range(request.shape[1]):
            out[b, starts[b] + token] = request[:, token]
    if order == "BNSD":
        return out.transpose(1, 2).contiguous()
    return out.flatten(2) if order == "BSH" else out


def from_output(out: Tensor, order: str, heads: int, q_lens: list[int], starts: list[int]) -> list[Tensor]:
    """The requests' (N, Lq, Dv) of an output; asserts that rows which no request owns are 0."""
    if order in ("TND", "NTD"):
        tokens = out if order == "TND" else out.transpose(0, 1)
        return [part.transpose(0, 1) for part in torch.split(tokens, q_lens)]
    if order == "BSH":
        out = out.unflatten(-1, (heads, -1))
    views = {
        "BSH": lambda t: t.transpose(1, 2),
        "BSND": lambda t: t.transpose(1, 2),
        "NBSD": lambda t: t.transpose(0, 1),
        "BNSD": lambda t: t,
    }
    bnsd = views[order](out)
    parts = []
    for b, (start, length) in enumerate(zip(starts, q_lens, strict=True)):
        parts.append(bnsd[b, :, start : start + length])
        unowned = torch.cat([bnsd[b, :, :start], bnsd[b, :, start + length :]], 1)
        assert (unowned == 0).all(), "rows beyond the query length aren't 0"
    return parts


def from_lse(lse: Tensor, is_packed: bool, q_lens: list[int], starts: list[int]) -> list[Tensor]:
    """The requests' (N, Lq) of a (B, N, S, 1) or (T, N, 1) log-sum-exp."""
    assert lse.shape[-1] == 1
    if is_packed:
        return [part[:, :, 0].t() for part in torch.split(lse, q_lens)]
    ends = [start + length for start, length in zip(starts, q_lens, strict=True)]
    return [lse[b, :, start:end, 0] for b, (start, end) in enumerate(zip(starts, ends, strict=True))]


def table(kv_lens: list[int], block_size: int, spare: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """A block table with the blocks permuted and garbage ids behind each row's end, and the count of
    blocks."""
    counts = [-(-length // block_size) for length in kv_lens]
    total = sum(counts) + spare
    order = torch.randperm(total, generator=generator).tolist()
    out = torch.full((len(kv_lens), max([*counts, 1]) + 1), 2**30, dtype=torch.int32)
    for b, count in enumerate(counts):
        for column in range(count):
            out[b, column] = order.pop()
    return out, max(total, 1)


def paged(requests: list[Tensor], form: str, block_table: Tensor, blocks: int, block_size: int) -> Tensor:
    """A cache in form BnBsH, BnNBsD or NZ."""
    heads, _, dim = requests[0].shape
    out = garbage((blocks, heads, block_size, dim), requests[0].dtype)
    for b, request in enumerate(requests):
        for token in range(request.shape[1]):
            out[int(block_table[b, token // block_size]), :, token % block_size] = request[:, token]
    if form == "BnNBsD":
        return out
    if form == "BnBsH":
        return out.transpose(1, 2).flatten(2)
    width = 32 if requests[0].dtype == torch.int8 else 16
    return out.unflatten(-1, (dim // width, width)).transpose(2, 3).contiguous()
