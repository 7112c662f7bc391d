"""One decode step of a Llama-shaped model against the capacity of its static cache.

    python benchmarks/decode_capacity.py

The true length is 400 throughout; only the capacity grows. A step that reads what is there
costs the same at 1k and 16k. Eager, inductor and this backend take turns in one process, one
thread; medians. Then: peak memory of a step, and where compile time goes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
from measure import compiled, peak_bytes
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import npu_compile

LENGTH = 400
CAPACITIES = (1024, 4096, 16384)
BACKENDS = ("eager", "inductor", "ascend_fia")


def build(layers: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=32768,
    )
    return LlamaForCausalLM(config).eval()


def filled_cache(model: LlamaForCausalLM, capacity: int) -> StaticCache:
    """A cache that holds LENGTH tokens."""
    cache = StaticCache(config=model.config, max_cache_len=capacity)
    tokens = torch.randint(0, 1000, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    model(input_ids=tokens, cache=cache, use_cache=True)
    return cache


def rewind(cache: StaticCache) -> None:
    for layer in cache.layers:
        layer.cumulative_length.fill_(LENGTH)


def step_times(model: LlamaForCausalLM, capacity: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step by backend; the backends take turns."""
    token = torch.tensor([[7]])
    steps = {name: (compiled(model, name), filled_cache(model, capacity)) for name in BACKENDS}
    times: dict[str, list[float]] = {name: [] for name in BACKENDS}
    logits = {}
    for turn in range(rounds + 3):
        for name, (step, cache) in steps.items():
            rewind(cache)
            start = time.perf_counter()
            logits[name] = step(input_ids=token, cache=cache, use_cache=True).logits
            if turn >= 3:
                times[name].append(1000 * (time.perf_counter() - start))
    for name in BACKENDS[1:]:
        error = (logits[name] - logits["eager"]).abs().max().item()
        if error > 1e-4:
            sys.exit(f"{name} differs from eager by {error:.1e}")
    return {name: statistics.median(found) for name, found in times.items()}


def peak_mebibytes(model: LlamaForCausalLM, backend: str, capacity: int) -> float:
    """The most memory that a step holds at once, beside weights and cache."""
    step, cache = compiled(model, backend), filled_cache(model, capacity)
    token = torch.tensor([[7]])
    step(input_ids=token, cache=cache, use_cache=True)
    rewind(cache)
    return peak_bytes(lambda: step(input_ids=token, cache=cache, use_cache=True)) / 2**20


def compile_times(layers: int) -> dict[str, float]:
    """Seconds to compile one decode step: this backend by part, and aot_eager as the measure."""
    model = build(layers)
    found = {}
    for backend in ("aot_eager", "ascend_fia"):
        torch._dynamo.reset()
        cache = filled_cache(model, 1024)
        step = compiled(model, backend)
        start = time.perf_counter()
        step(input_ids=torch.tensor([[7]]), cache=cache, use_cache=True)
        found[backend] = time.perf_counter() - start
    timings = npu_compile.last_report().graphs[-1].timings
    found["normalise"] = timings["normalise"]
    found["passes after it"] = sum(timings.values()) - timings["normalise"]
    found["dynamo and the rest"] = found["ascend_fia"] - sum(timings.values())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 16, 64])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 64
    console = Console(width=110)
    model = build(4)
    table = Table(
        "capacity", *(f"{b} ms" for b in BACKENDS), "/ eager", "/ inductor", title="decode step, length 400"
    )
    steps = {}
    for capacity in CAPACITIES:
        steps[capacity] = row = step_times(model, capacity, arguments.rounds)
        ours = row["ascend_fia"]
        table.add_row(
            str(capacity),
            *(f"{row[b]:.1f}" for b in BACKENDS),
            f"{ours / row['eager']:.2f}",
            f"{ours / row['inductor']:.2f}",
        )
    console.print(table)
    growth = steps[CAPACITIES[-1]]["ascend_fia"] / steps[CAPACITIES[0]]["ascend_fia"]
    console.print(f"ascend_fia, 16k over 1k: {growth:.2f}")
    table = Table("capacity", *BACKENDS, title="peak memory of a step beside weights and cache, MiB")
    for capacity in CAPACITIES:
        table.add_row(str(capacity), *(f"{peak_mebibytes(model, b, capacity):.1f}" for b in BACKENDS))
    console.print(table)
    parts = ("aot_eager", "ascend_fia", "dynamo and the rest", "normalise", "passes after it")
    table = Table("layers", *parts, "passes share", title="compile time, seconds")
    for layers in arguments.layers:
        found = compile_times(layers)
        share = found["passes after it"] / found["ascend_fia"]
        table.add_row(str(layers), *(f"{found[p]:.2f}" for p in parts), f"{share:.1%}")
    console.print(table)


if __name__ == "__main__":
    main()
