"""What the benchmarks share: a forward by its backend, time, memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]


def compiled(model: Any, backend: str) -> Callable[..., Any]:
    """``model``'s forward by ``backend``; "eager" is the plain one."""
    forward: Callable[..., Any] = model.forward
    return forward if backend == "eager" else torch.compile(forward, backend=backend)


def medians(runs: Sequence[Run], rounds: int) -> list[float]:
    """Median milliseconds of each, run in turns."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, sample in zip(runs, samples, strict=True):
            start = time.perf_counter()
            run()
            sample.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(sample) for sample in samples]


def peak_bytes(run: Run) -> int:
    """The most memory that a run has allocated at one time, beyond what was allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    current = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak
