"""A Gemma-2-shaped model, whose soft-capped scores no fused operator takes: prefill, and a decode step.

    python benchmarks/softcap.py

Heads, head dim and cap are Gemma 2 2B's; two layers, one thread. Eager, inductor and this backend take turns
in one process; medians. The decode step has 400 tokens in a static cache of growing capacity.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from measure import compiled, medians, peak_bytes
from rich.console import Console
from rich.table import Table
from transformers import Gemma2Config, Gemma2ForCausalLM, StaticCache

import npu_compile  # noqa: F401  registers the backend

LENGTH = 400
BACKENDS = ("eager", "inductor", "ascend_fia")
COLUMNS = (*(f"{name} ms" for name in BACKENDS), "/ eager", "/ inductor", "eager MiB", "ascend_fia MiB")


def build() -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=1000,
        hidden_size=2304,
        intermediate_size=2304,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        layer_types=["full_attention", "full_attention"],
        max_position_embeddings=32768,
    )
    return Gemma2ForCausalLM(config).eval()


def steps(model: Gemma2ForCausalLM, capacity: int) -> list[Callable[[], Any]]:
    """One token after LENGTH others, by each backend."""
    return [partial(step, compiled(model, name), filled(model, capacity)) for name in BACKENDS]


def filled(model: Gemma2ForCausalLM, capacity: int) -> StaticCache:
    cache = StaticCache(config=model.config, max_cache_len=capacity)
    model(input_ids=_tokens(LENGTH), cache=cache, use_cache=True)
    return cache


def step(forward: Callable[..., Any], cache: StaticCache) -> torch.Tensor:
    for layer in cache.layers:
        layer.cumulative_length.fill_(LENGTH)
    logits: torch.Tensor = forward(input_ids=_tokens(1), cache=cache, use_cache=True).logits
    return logits


def prefills(model: Gemma2ForCausalLM, tokens: int) -> list[Callable[[], Any]]:
    def run(forward: Callable[..., Any]) -> torch.Tensor:
        logits: torch.Tensor = forward(input_ids=_tokens(tokens), use_cache=False).logits
        return logits

    return [partial(run, compiled(model, name)) for name in BACKENDS]


def _tokens(count: int) -> torch.Tensor:
    return torch.randint(0, 1000, (1, count), generator=torch.Generator().manual_seed(0))


def row(runs: Sequence[Callable[[], Any]], rounds: int) -> list[str]:
    outputs = [run() for run in runs]
    error = max((output - outputs[0]).abs().max().item() for output in outputs)
    if error > 1e-4:
        sys.exit(f"the backends differ by {error:.1e}")
    eager, inductor, ours = medians(runs, rounds)
    peaks = [peak_bytes(run) / 2**20 for run in (runs[0], runs[2])]
    times = [f"{time:.1f}" for time in (eager, inductor, ours)]
    return [*times, f"{ours / eager:.2f}", f"{ours / inductor:.2f}", *(f"{peak:.1f}" for peak in peaks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--capacities", type=int, nargs="*", default=[1024, 4096, 16384])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 64
    console, model = Console(width=110), build()
    table = Table("prompt", *COLUMNS, title="prefill")
    for tokens in arguments.prompts:
        table.add_row(str(tokens), *row(prefills(model, tokens), arguments.rounds))
    console.print(table)
    table = Table("capacity", *COLUMNS, title=f"decode step, length {LENGTH}")
    for capacity in arguments.capacities:
        table.add_row(str(capacity), *row(steps(model, capacity), arguments.rounds))
    console.print(table)


if __name__ == "__main__":
    main()
