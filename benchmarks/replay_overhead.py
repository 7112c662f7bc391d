"""What the capture runtime costs the host per step, apart from the graph's own work.

    python benchmarks/replay_overhead.py

A decode step with the inputs of a real layer (9 parameters, 2 caches and a counter) is captured and
replayed on the CPU simulation with its body taken out: what is left is the runtime. It checks every
address, copies the new inputs, computes the lengths, updates the records and hands out the result.
Beside it stands a bare call of an FX graph module with the same inputs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.runtime import capture
from npu_compile.runtime.cpu_graph import CpuGraph, CpuGraphRuntime

PARAMETERS = 9
BATCH, HEADS, KV_HEADS, HEAD_DIM, CAPACITY = 2, 4, 2, 16, 64
FIXED_LIMIT, LAYER_LIMIT = 30.0, 1.0
"""Microseconds a step, and a layer, that the runtime may cost."""


def decode(tokens: Tensor, q: Tensor, *state: Tensor) -> tuple[Tensor]:
    """One step over layers of ``state``: parameters, key cache, value cache, counter each."""
    width = PARAMETERS + 3
    lengths = None
    for layer in range(len(state) // width):
        *weights, keys, values, counter = state[layer * width : (layer + 1) * width]
        if lengths is None:
            lengths = torch.ops.ascend_fia.host_lengths((counter + 1).reshape(-1))
        position = torch.arange(1) + counter
        counter.add_(1)
        for weight in weights:
            q = q * weight
        keys.index_copy_(2, position, q[:, :KV_HEADS])
        values.index_copy_(2, position, q[:, :KV_HEADS])
        q = torch.ops.ascend_fia.npu_fused_infer_attention_score(
            q,
            keys,
            values,
            num_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            input_layout="BNSD",
            actual_seq_lengths_kv=lengths,
        )[0]
    return (q + tokens[:, :, None, None],)


def inputs(layers: int) -> list[Tensor]:
    args = [torch.zeros(BATCH, 1, dtype=torch.long), torch.randn(BATCH, HEADS, 1, HEAD_DIM)]
    for _ in range(layers):
        args += [torch.nn.Parameter(torch.ones(HEAD_DIM), False) for _ in range(PARAMETERS)]
        args += [torch.zeros(BATCH, KV_HEADS, CAPACITY, HEAD_DIM) for _ in "kv"]
        args.append(torch.tensor(0))
    return args


def traced(function: Callable[..., Any], args: Sequence[Tensor]) -> fx.GraphModule:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(arg) for arg in args]
    with mode:
        return make_fx(function, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)


class WithoutBody(CpuGraph):
    """A captured graph whose replay does nothing."""

    def replay(self) -> None:
        self._updated = False


class WithoutBodies(CpuGraphRuntime):
    def capture(self, *args: Any) -> CpuGraph:
        return WithoutBody(*args, self.value_wait)


def microseconds(function: Callable[..., Any], args: Sequence[Any], steps: int) -> float:
    """The median time of a call; the quickest of five rounds, since other programs only add to it."""
    rounds = []
    for _ in range(5):
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            function(*args)
            times.append(time.perf_counter() - start)
        rounds.append(statistics.median(times) * 1e6)
    return min(rounds)


def measure(layers: int, steps: int) -> tuple[float, float]:
    """Microseconds of the runtime and of a bare FX call, for the same inputs."""
    args = inputs(layers)
    function = capture(traced(decode, args), runtime=WithoutBodies())
    function(*args)
    bare = traced(lambda tokens, *rest: (tokens * 1,), args)
    return microseconds(function, args, steps), microseconds(bare, args, steps)


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 32, 64])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    ensure_graph_ops()
    torch.set_num_threads(1)
    table = Table("layers", "inputs", "runtime, us/step", "limit, us", "bare FX call, us", "ratio")
    within = True
    for layers in options.layers:
        runtime, bare = measure(layers, options.steps)
        limit = FIXED_LIMIT + LAYER_LIMIT * layers
        within &= runtime <= limit
        table.add_row(
            str(layers),
            str(2 + layers * (PARAMETERS + 3)),
            f"{runtime:.1f}",
            f"{limit:.0f}",
            f"{bare:.1f}",
            f"{runtime / bare:.1f}",
        )
    Console().print(table)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
