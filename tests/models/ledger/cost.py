"""What compiling costs beside backend="aot_eager": a sample of types, printed and not kept.

Times aren't data: they depend on the machine and on what else runs. Processor time is compared, of a first
prefill, each backend after a compilation of its own that has imported what it needs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from tests.models.ledger.build import Built, NotBuilt, build
from tests.models.ledger.cases import prefill

EVERY = 15
BACKENDS = ("ascend_fia", "aot_eager")


@dataclass(frozen=True)
class Cost:
    """Seconds of processor time that a first prefill takes."""

    type: str
    attention: str
    ascend_fia: float
    aot_eager: float


def cost(task: tuple[str, str]) -> Iterator[Cost]:
    try:
        built = build(*task)
    except NotBuilt:
        return
    seconds = {backend: min(_seconds(built, backend) for _ in range(2)) for backend in BACKENDS}
    yield Cost(*task, **seconds)


def _seconds(built: Built, backend: str) -> float:
    torch._dynamo.reset()
    start = time.process_time()
    with torch.no_grad():
        prefill(built, torch.compile(built.model.forward, backend=backend))
    return time.process_time() - start


def table(costs: Iterable[Cost]) -> str:
    """A line a type, the ratio last, and the median ratio."""
    found = sorted(costs, key=lambda cost: (cost.type, cost.attention))
    lines = [f"{'type':32} {'attention':16} {'ascend_fia':>10} {'aot_eager':>10} {'ratio':>6}"]
    for each in found:
        ratio = each.ascend_fia / each.aot_eager
        head = f"{each.type:32} {each.attention:16}"
        lines.append(f"{head} {each.ascend_fia:10.2f} {each.aot_eager:10.2f} {ratio:6.2f}")
    if found:
        median = statistics.median(each.ascend_fia / each.aot_eager for each in found)
        lines.append(f"median ratio of {len(found)}: {median:.2f}")
    return "\n".join(lines)
