"""What the collectives of a rewritten graph cost, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sympy import sympify
from torch import fx

from .fia_call import OPERATORS as ATTENTION
from .schedule import overlapped

COLLECTIVES: Mapping[Any, str] = {
    torch.ops._c10d_functional.all_gather_into_tensor.default: "all_gather",
    torch.ops._c10d_functional.all_to_all_single.default: "all_to_all",
}

COMPUTE = frozenset(
    ("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", *(operator._opname for operator in ATTENTION))
)
"""Operators worth naming as running beside a collective."""


@dataclass(frozen=True)
class CollectiveUse:
    """One collective of a step.

    ``shape`` is that of this rank's part; ``received_bytes`` what comes from other ranks in one
    step; ``beside`` the computing operators that run between its start and the wait for it.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    received_bytes: int
    beside: tuple[str, ...]


def collective_uses(nodes: Sequence[fx.Node], ranks: int, sizes: Mapping[Any, Any]) -> list[CollectiveUse]:
    """What the collectives ``nodes`` cost; ``sizes`` are values of the graph's unbacked symbols."""
    uses = []
    for node in nodes:
        sent, received = node.all_input_nodes[0].meta["val"], node.meta["val"]
        bytes_ = _number(received.numel(), sizes) * received.element_size()
        uses.append(
            CollectiveUse(
                COLLECTIVES[node.target],
                tuple(_number(size, sizes) for size in sent.shape),
                str(sent.dtype).removeprefix("torch."),
                bytes_ * (ranks - 1) // ranks,
                tuple(name for name in map(_name, overlapped(node)) if name in COMPUTE),
            )
        )
    return uses


def describe(mode: str, ranks: int, uses: list[CollectiveUse], tokens_per_rank: tuple[int, ...]) -> list[str]:
    """Sentences for the report of a graph, of the step that it was compiled in."""
    total = sum(use.received_bytes for use in uses)
    lines = [
        f"context parallel {mode} over {ranks} ranks: {len(uses)} collectives a step bring "
        f"{total:,} bytes to a rank"
    ]
    for kind in sorted({use.kind for use in uses}):
        some = [use for use in uses if use.kind == kind]
        received = sum(use.received_bytes for use in some)
        beside = sum(bool(use.beside) for use in some)
        names = sorted({name for use in some for name in use.beside})
        what = f" ({', '.join(names)})" if names else ""
        lines.append(f"{len(some)} {kind}: {received:,} bytes, {beside} of them beside computation{what}")
    if tokens_per_rank:
        most, least = max(tokens_per_rank), min(tokens_per_rank)
        lines.append(f"tokens on a rank: {least} to {most}, max/min {most / least:.2f}")
    return lines


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))


def _number(size: Any, sizes: Mapping[Any, Any]) -> int:
    """A size in the step that was compiled: as traced, with ``sizes`` for what is known only in a step."""
    if isinstance(size, int):
        return size
    environment = size.node.shape_env
    # Named backed_var_to_val since torch 2.13.
    known = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    return int(sympify(size.node.expr).xreplace({**getattr(environment, known), **sizes}))
