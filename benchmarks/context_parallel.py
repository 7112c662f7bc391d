"""What context parallel moves, keeps and balances, measured on real ranks against formulas.

    python benchmarks/context_parallel.py

Starts 2 and then 4 processes with gloo, one thread each, a Llama of 8/2 heads and an MLA model.
"received" is counted in the collectives that really run and compared with the formula printed
beside it; both must be equal. Exits with 1 where they aren't, where tokens are out of balance by
more than 1.2, or where a rank keeps more than 1/R + 10% of the whole KV cache.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch._ops import OpOverload
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM

from npu_compile.parallel import ContextParallelModel, context_parallel
from npu_compile.parallel.layout.zigzag import Zigzag

LAYERS, MAX_LENGTH = 2, 4096
LENGTHS = (1021, 640)
FLOAT = 4
COLLECTIVES = ("all_gather_into_tensor", "all_to_all_single")


@dataclass(frozen=True)
class Row:
    """One measured quantity of one rank beside what it should be, in bytes."""

    what: str
    measured: int
    formula: str
    expected: int
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.measured <= self.expected if self.at_most else self.measured == self.expected


class Received:
    """Counts the bytes that collectives bring to this rank from others, where graphs call them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.bytes = 0

    def __enter__(self) -> Received:
        self._call = OpOverload.__call__

        def counting(operator: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
            result = self._call(operator, *args, **kwargs)
            if operator._opname in COLLECTIVES:
                rows = result.shape[0]
                own = args[1][self._rank] if operator._opname == "all_to_all_single" else args[0].shape[0]
                self.bytes += (rows - own) * result[:1].numel() * result.element_size()
            return result

        OpOverload.__call__ = counting  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        OpOverload.__call__ = self._call  # type: ignore[method-assign]


def llama() -> LlamaForCausalLM:
    config = LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 8, 2, 32
    return LlamaForCausalLM(config)


def deepseek() -> DeepseekV3ForCausalLM:
    latent = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
    heads = {"v_head_dim": 32, "num_attention_heads": 8, "num_key_value_heads": 8}
    dense = {"intermediate_size": 512, "first_k_dense_replace": LAYERS}
    config = DeepseekV3Config(
        vocab_size=512, hidden_size=256, num_hidden_layers=LAYERS, **latent, **heads, **dense
    )
    return DeepseekV3ForCausalLM(config)


@dataclass(frozen=True)
class Sizes:
    """Numbers per token and layer: what a key costs, and what a query head's partial result is wide."""

    name: str
    build: Callable[[], Any]
    key: int
    key_text: str
    heads: int
    partial: int
    options: dict[str, Any]


MODELS = (
    Sizes("llama, 8/2 heads of 32", llama, 2 * (32 + 32), "N_kv (D + D_v)", 8, 32, {}),
    Sizes("deepseek_v3, latent 64 + 16", deepseek, 64 + 16, "(L + D_rope)", 8, 64, {"mla": "absorb"}),
)


def measure(rank: int, ranks: int, sizes: Sizes) -> tuple[list[Row], float]:
    """The rows of this rank, and the seconds of a prefill once compiled."""
    torch.manual_seed(0)
    model = sizes.build().eval()
    parallel = context_parallel(model, max_length=MAX_LENGTH, options=sizes.options)
    prompts = [torch.arange(length) % 512 for length in LENGTHS]
    rows = prefill_rows(parallel, prompts, rank, ranks, sizes) + decode_rows(parallel, rank, ranks, sizes)
    whole = LAYERS * len(LENGTHS) * MAX_LENGTH * sizes.key * FLOAT
    share = int(whole / ranks * 1.1)
    rows.append(Row("KV cache kept", parallel.cache_bytes(), "whole / R + 10%", share, at_most=True))
    seconds = []
    for _ in range(3):
        parallel.reset()
        dist.barrier()
        start = time.perf_counter()
        parallel.prefill(prompts)
        seconds.append(time.perf_counter() - start)
    return rows, statistics.median(seconds)


def prefill_rows(
    parallel: ContextParallelModel, prompts: list[torch.Tensor], rank: int, ranks: int, sizes: Sizes
) -> list[Row]:
    layout = Zigzag(LENGTHS, ranks)
    tokens = max(layout.tokens_per_rank)
    # Besides keys: where each new one is kept (1/R of them is there already), and 16 bytes that tell
    # whether all ranks have the same prompts.
    parallel.prefill(prompts)
    parallel.reset()
    with Received(rank) as received:
        parallel.prefill(prompts)
    kept = parallel.kept_tokens - own_tokens_kept(layout, rank, ranks)
    moved = LAYERS * sizes.key * FLOAT
    expected = moved * ((ranks - 1) * tokens + kept) + (ranks - 1) * 16
    formula = f"layers x {sizes.key_text} x 4 x ((R - 1) x {tokens} + {kept}) + 16 (R - 1)"
    return [Row("prefill received", received.bytes, formula, expected)]


def own_tokens_kept(layout: Zigzag, rank: int, ranks: int) -> int:
    """Tokens that are kept on the rank that computed them."""
    packed = layout.token_index(rank)
    starts = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)
    sequence = torch.bucketize(packed, starts, right=True) - 1
    return int(((packed - starts[sequence]) % ranks == rank).sum())


def decode_rows(parallel: ContextParallelModel, rank: int, ranks: int, sizes: Sizes) -> list[Row]:
    tokens = torch.zeros(len(LENGTHS), dtype=torch.int64)
    parallel.decode(tokens)
    with Received(rank) as received:
        parallel.decode(tokens)
    share = LAYERS * len(LENGTHS) * sizes.heads // ranks * (ranks - 1) * FLOAT
    expected = share * (2 * sizes.partial + 1)
    return [
        Row("decode step received", received.bytes, "layers x B x N (R - 1) / R x 4 x (2 D + 1)", expected)
    ]


def work(rank: int, ranks: int, port: int) -> None:
    """One rank: measure every model; rank 0 prints. Exits with 1 where a row of a rank isn't as expected."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    ok = True
    for sizes in MODELS:
        mine = measure(rank, ranks, sizes)
        measured: list[Any] = [None] * ranks
        dist.all_gather_object(measured, mine)
        ok &= all(row.ok for rows, _ in measured for row in rows)
        if rank == 0:
            show(f"{sizes.name}, {ranks} ranks: prefill of {LENGTHS} in {mine[1]:.2f} s", measured)
        torch.compiler.reset()
    dist.destroy_process_group()
    if not ok:
        sys.exit(1)


def show(title: str, measured: list[tuple[list[Row], float]]) -> None:
    table = Table("rank", "what", "measured", "expected", "formula", title=title, title_justify="left")
    for rank, (rows, _) in enumerate(measured):
        for row in rows:
            found = f"{row.measured:,}" + ("" if row.ok else " !")
            expected = ("<= " if row.at_most else "") + f"{row.expected:,}"
            table.add_row(str(rank), row.what, found, expected, row.formula)
    Console(width=140).print(table)


def balance() -> bool:
    worst = {
        ranks: max(
            max(tokens) / min(tokens)
            for length in range(16 * ranks, 17 * ranks + 64)
            for tokens in [Zigzag((length,), ranks).tokens_per_rank]
        )
        for ranks in (2, 4, 8, 16)
    }
    text = ", ".join(f"R={ranks}: {ratio:.3f}" for ranks, ratio in worst.items())
    print(f"zigzag, worst max/min tokens for L >= 16 R: {text}")
    return max(worst.values()) <= 1.2


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    ok = balance()
    for ranks in parser.parse_args().ranks:
        try:
            mp.spawn(work, (ranks, free_port()), nprocs=ranks)
        except mp.ProcessExitedException:
            ok = False
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
