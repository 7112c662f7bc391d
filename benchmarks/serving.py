"""Continuous batching of transformers on "ascend_fia" against its own "sdpa" and "eager" paths.

    python benchmarks/serving.py

16 requests of 50 to 800 tokens at once, 48 new tokens each, greedy, on the CPU with one thread. The paths
take turns in one process, on one model, with the same engine settings, and have to give the same tokens.
Memory is the growth of the peak resident size, with the cache, in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from rich.table import Table

import npu_compile.hf

PATHS = ("ascend_fia", "sdpa", "eager")
REQUESTS = 16
NEW_TOKENS = 48
VOCABULARY = 4096
ENGINE = {"page_size": 128, "num_blocks": 160, "max_batch_tokens": 512}


@dataclass
class Run:
    """``first`` are the times to a request's first token, ``gaps`` those between its tokens; seconds."""

    tokens: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def build() -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=None,
    )
    return hf.LlamaForCausalLM(config).eval()


def prompts(longest: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.linspace(50, longest, REQUESTS).int().tolist()
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def serve(model: Any, path: str, requests: list[list[int]], new_tokens: int) -> Run:
    """All requests at once; the clock runs from handing them in to the last token."""
    model.set_attn_implementation(path)
    manager = model.init_continuous_batching(
        generation_config=hf.GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=hf.ContinuousBatchingConfig(**ENGINE),
    )
    manager.warmup()
    manager.start()
    run, done = Run(), {}
    start = time.perf_counter()
    ids = manager.add_requests(requests, max_new_tokens=new_tokens, record_timestamps=True)
    while len(done) < len(ids):
        result = manager.get_result(timeout=1)
        if result is not None:
            if result.error is not None:
                sys.exit(f"{path}: {result.error}")
            done[result.request_id] = result
    run.seconds = max(result.timestamps[-1] for result in done.values()) - start
    manager.stop(block=True)
    manager.destroy()
    for request in ids:
        result = done[request]
        run.tokens.append(result.generated_tokens)
        run.first.append(result.timestamps[0] - start)
        run.gaps += [later - earlier for earlier, later in pairwise(result.timestamps)]
    return run


def peak_megabytes(path: str) -> float:
    command = [sys.executable, __file__, "--peak", path]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def print_peak(path: str) -> None:
    model = build()
    before = peak_kilobytes()
    serve(model, path, prompts(800), 2)
    print((peak_kilobytes() - before) / 1024)


def peak_kilobytes() -> int:
    """This process's own peak; getrusage's begins with that of the process it was forked from."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


def percentiles(values: list[float]) -> dict[int, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {p: cuts[p - 1] for p in (50, 90, 99)}


def plot(console: Console, gaps: dict[str, dict[int, float]]) -> None:
    """Milliseconds between two tokens of a request, as bars to one scale."""
    width = 70 / max(max(found.values()) for found in gaps.values())
    console.print("\nmilliseconds between two tokens of a request")
    for path, found in gaps.items():
        for percentile, seconds in found.items():
            bar = "█" * max(1, round(seconds * width))
            console.print(f"{path:>10} p{percentile} {bar} {1000 * seconds:.0f}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=800)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--peak", metavar="PATH", help="print one path's memory and nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    npu_compile.hf.register()
    if arguments.peak:
        print_peak(arguments.peak)
        return
    console = Console(width=110)
    model, requests = build(), prompts(arguments.longest)
    runs: dict[str, list[Run]] = {path: [] for path in PATHS}
    for _ in range(arguments.rounds):
        for path, found in runs.items():
            found.append(serve(model, path, requests, arguments.new_tokens))
    for path, found in runs.items():
        if any(run.tokens != runs["eager"][0].tokens for run in found):
            sys.exit(f"{path} gives other tokens than eager")
    table = Table("attention", "tokens/s", "of the best other", "first token p50", "p99", "peak MiB")
    rates = {path: statistics.median(run.throughput for run in found) for path, found in runs.items()}
    best = max(rate for path, rate in rates.items() if path != "ascend_fia")
    for path, found in runs.items():
        first = percentiles([seconds for run in found for seconds in run.first])
        table.add_row(
            path,
            f"{rates[path]:.1f}",
            f"{rates[path] / best:.2f} x",
            f"{first[50]:.2f} s",
            f"{first[99]:.2f} s",
            f"{peak_megabytes(path):.0f}",
        )
    console.print(table)
    plot(console, {path: percentiles([s for run in found for s in run.gaps]) for path, found in runs.items()})


if __name__ == "__main__":
    main()
