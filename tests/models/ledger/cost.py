"""What compiling costs beside backend="aot_eager": a sample of types, printed and not kept.

Times aren't data: they depend on the machine and on what else runs. Processor time is compared, of a first
prefill: the whole, most of which is dynamo's tracing and the same for both, and what the backend itself
takes of it. The best of several rounds is told, the backends taking turns, without garbage collection.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend

from tests.models.ledger.build import Built, NotBuilt, build
from tests.models.ledger.cases import prefill

EVERY = 15
ROUNDS = 3
BACKENDS = ("ascend_fia", "aot_eager")


@dataclass(frozen=True)
class Seconds:
    """Processor time of a first prefill, and the part of it inside of the backend."""

    whole: float
    inside: float


@dataclass(frozen=True)
class Cost:
    type: str
    attention: str
    ascend_fia: Seconds
    aot_eager: Seconds


def cost(task: tuple[str, str]) -> Iterator[Cost]:
    try:
        built = build(*task)
    except NotBuilt:
        return
    rounds = [{backend: _seconds(built, backend) for backend in BACKENDS} for _ in range(ROUNDS)]
    best = {
        backend: Seconds(
            min(each[backend].whole for each in rounds), min(each[backend].inside for each in rounds)
        )
        for backend in BACKENDS
    }
    yield Cost(*task, **best)


def _seconds(built: Built, name: str) -> Seconds:
    inside = 0.0

    def backend(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal inside
        start = time.process_time()
        run = lookup_backend(name)(module, inputs)
        inside += time.process_time() - start
        return run

    torch._dynamo.reset()
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        with torch.no_grad():
            prefill(built, torch.compile(built.model.forward, backend=backend))
        return Seconds(time.process_time() - start, inside)
    finally:
        gc.enable()


def table(costs: Iterable[Cost]) -> str:
    """A line a type, the ratios last, and their medians."""
    found = sorted(costs, key=lambda cost: (cost.type, cost.attention))
    lines = [
        f"{'type':32} {'attention':14} {'ascend_fia':>14} {'aot_eager':>14} {'whole':>6} {'inside':>6}",
        f"{'':47} {'whole (inside)':>14} {'whole (inside)':>14} {'ratio':>6} {'ratio':>6}",
    ]
    wholes, insides = [], []
    for each in found:
        ours, theirs = each.ascend_fia, each.aot_eager
        wholes.append(ours.whole / theirs.whole)
        insides.append(ours.inside / theirs.inside)
        lines.append(
            f"{each.type:32} {each.attention:14} {ours.whole:6.2f} ({ours.inside:5.2f}) "
            f"{theirs.whole:6.2f} ({theirs.inside:5.2f}) {wholes[-1]:6.2f} {insides[-1]:6.2f}"
        )
    if found:
        lines.append(
            f"median ratios of {len(found)}: whole {statistics.median(wholes):.2f}, "
            f"inside {statistics.median(insides):.2f}; largest {max(wholes):.2f}, {max(insides):.2f}"
        )
    return "\n".join(lines)
