"""A decode step of multi-head latent attention: ``python benchmarks/mla_decode.py``, one thread, minutes.

DeepSeek-V3's attention as transformers has it, 32 heads of 512/64/128/128, hidden size 2048, two layers
without experts, float32, a static cache of 2k and of 8k tokens. Eager, inductor and this backend take steps
in turns; medians are compared. "core" is the attention alone, from query and latents to the heads' results.

Exits with 1 unless at 8k the step is 8 times faster than eager's and inductor's, the core 15 times faster
than eager's, and a step's peak memory stays the same when the heads double.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from measure import Run, medians, peak_bytes
from rich.console import Console
from rich.table import Table
from torch import Tensor

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
HEADS, HIDDEN, LAYERS = 32, 2048, 2
CACHES = (2048, 8192)
STEP_LIMIT, CORE_LIMIT = 8.0, 15.0


def model(heads: int) -> Any:
    config = hf.DeepseekV3Config(
        vocab_size=512,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        first_k_dense_replace=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        q_lora_rank=HIDDEN // 2,
        max_position_embeddings=CACHES[-1],
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return hf.DeepseekV3ForCausalLM(config).eval()


def filled_cache(config: Any, capacity: int, steps: int) -> hf.StaticCache:
    """A static cache of random latents, with room for ``steps`` more tokens."""
    cache = hf.StaticCache(config=config, max_cache_len=capacity)
    torch.manual_seed(1)
    for layer in cache.layers:
        layer.lazy_initialization(torch.zeros(1, 1, 1, LATENT), torch.zeros(1, 1, 1, ROPE))
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(capacity - steps)
    return cache


def stepper(forward: Callable[..., Any], config: Any, capacity: int, steps: int) -> Run:
    cache, token = filled_cache(config, capacity, steps), torch.tensor([[7]])
    return lambda: forward(input_ids=token, cache=cache, use_cache=True).logits


class Core(torch.nn.Module):
    """What transformers computes between the projections of the query and of the output."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.kv_b_proj = torch.nn.Linear(LATENT, heads * (NOPE + VALUE), bias=False)

    def forward(self, query: Tensor, latent: Tensor, rope: Tensor) -> Tensor:
        batch, _, tokens, _ = latent.shape
        expanded = self.kv_b_proj(latent).view(batch, tokens, -1, NOPE + VALUE).transpose(1, 2)
        key_nope, value = expanded.split([NOPE, VALUE], -1)
        key = expanded.new_empty(batch, self.heads, tokens, NOPE + ROPE)
        key[..., :NOPE].copy_(key_nope)
        key[..., NOPE:].copy_(rope.expand(-1, self.heads, -1, -1))
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, scale=(NOPE + ROPE) ** -0.5
        )


def step(capacity: int, rounds: int) -> tuple[list[float], float]:
    """Milliseconds of a step of eager, inductor and this backend, and how far ours is from eager."""
    net = model(HEADS)
    compiled = [torch.compile(net.forward, backend=b, fullgraph=True) for b in ("inductor", "ascend_fia")]
    states = [stepper(forward, net.config, capacity, rounds + 1) for forward in (net.forward, *compiled)]
    first = [run() for run in states]
    return medians(states, rounds), float((first[2] - first[0]).abs().max())


def core(capacity: int, rounds: int) -> tuple[list[float], float]:
    """The same of the attention alone, of eager and this backend."""
    torch.manual_seed(0)
    net = Core(HEADS)
    query = torch.randn(1, HEADS, 1, NOPE + ROPE)
    latent, rope = torch.randn(1, 1, capacity, LATENT), torch.randn(1, 1, capacity, ROPE)
    ours = torch.compile(net, backend="ascend_fia", fullgraph=True)
    runs: list[Run] = [lambda: net(query, latent, rope), lambda: ours(query, latent, rope)]
    difference = float((ours(query, latent, rope) - net(query, latent, rope)).abs().max())
    return medians(runs, rounds), difference


def step_memory(heads: int, capacity: int) -> tuple[int, int]:
    """Peak bytes of a step, of eager and of this backend."""
    net = model(heads)
    ours = torch.compile(net.forward, backend="ascend_fia", fullgraph=True)
    peaks = []
    for forward in (net.forward, ours):
        run = stepper(forward, net.config, capacity, 4)
        run()
        peaks.append(peak_bytes(run))
    return peaks[0], peaks[1]


def main() -> int:
    torch.set_num_threads(1)
    failed = False
    table = Table("what", "cache", "eager ms", "inductor ms", "ours ms", "against eager", "difference")
    with torch.no_grad():
        for capacity in CACHES:
            (eager, inductor, ours), difference = step(capacity, 5)
            gain = f"{eager / ours:.1f}x, inductor {inductor / ours:.1f}x"
            table.add_row(
                "step",
                str(capacity),
                f"{eager:.0f}",
                f"{inductor:.0f}",
                f"{ours:.1f}",
                gain,
                f"{difference:.0e}",
            )
            failed |= capacity == CACHES[-1] and min(eager, inductor) / ours < STEP_LIMIT
            (eager, ours), difference = core(capacity, 5)
            table.add_row(
                "core",
                str(capacity),
                f"{eager:.0f}",
                "",
                f"{ours:.1f}",
                f"{eager / ours:.1f}x",
                f"{difference:.0e}",
            )
            failed |= capacity == CACHES[-1] and eager / ours < CORE_LIMIT
        memory = Table("peak memory of a step, MB", "cache", "eager", "ours")
        peaks = {heads: step_memory(heads, CACHES[-1]) for heads in (HEADS // 2, HEADS)}
        for heads, (eager_peak, our_peak) in peaks.items():
            memory.add_row(
                f"{heads} heads", str(CACHES[-1]), f"{eager_peak / 1e6:.0f}", f"{our_peak / 1e6:.0f}"
            )
        failed |= peaks[HEADS][1] > 1.1 * peaks[HEADS // 2][1]
    console = Console(width=120)
    console.print(table, memory)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
