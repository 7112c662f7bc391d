"""CPU FIA beside torch's own attention: ``python benchmarks/kernels.py``, one thread, about a minute.

Every pair runs in turns on the same tensors and the medians are compared, so that a busy machine slows both
alike.

* decode and causal prefill, GQA 16/4: at most 1.15 of F.scaled_dot_product_attention;
* decode from a paged cache, blocks permuted, 400 of 4096 tokens in use: at most 1.5 of decode from a
  contiguous cache with the same lengths;
* decode from a cache of 16k: at most 1.15 of decode from one of 1k, both with 400 tokens in use.

Where a ratio is above its limit the reason follows. Exits with 1 then.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from measure import Run, medians
from rich.console import Console
from rich.table import Table
from torch import Tensor

from npu_compile.kernels.causal_mask import causal_mask
from npu_compile.kernels.register import ensure_npu_ops

HEADS, KV_HEADS = 16, 4
ROUNDS = 41
BLOCK_SIZE = 128
USED = 400

GATHERED = "a paged cache is gathered first: the keys and values in use are copied once"
OVERHEAD = "a call costs a fixed time on top: the dispatcher hands it to Python, which checks the contract"


@dataclass(frozen=True)
class Pair:
    """Something measured beside what it is compared with; ``why`` explains a ratio above the limit."""

    name: str
    ours: Run
    reference: Run
    limit: float
    why: str = ""


def fia(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Run:
    """A call of FIA v1."""
    dim = query.shape[-1]
    call = torch.ops.npu.npu_fused_infer_attention_score
    fixed = {
        "num_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "scale": dim**-0.5,
        "input_layout": "BNSD",
        **options,
    }
    return lambda: call(query, key, value, **fixed)


def sdpa(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Run:
    """The same by PyTorch."""
    return lambda: F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, enable_gqa=True)


def tensors(queries: int, keys: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in BNSD."""
    query = torch.randn(1, HEADS, queries, dim, dtype=dtype)
    return (
        query,
        torch.randn(1, KV_HEADS, keys, dim, dtype=dtype),
        torch.randn(1, KV_HEADS, keys, dim, dtype=dtype),
    )


def decode(dim: int, dtype: torch.dtype) -> Pair:
    q, k, v = tensors(1, 4096, dim, dtype)
    ours = fia(q, k, v, actual_seq_lengths_kv=[4096])
    return Pair(f"decode 4096, D {dim}", ours, sdpa(q, k, v), 1.15, OVERHEAD)


def prefill(dim: int, dtype: torch.dtype) -> Pair:
    q, k, v = tensors(1024, 1024, dim, dtype)
    ours = fia(q, k, v, sparse_mode=3, atten_mask=causal_mask("cpu"))
    return Pair(f"causal prefill 1024, D {dim}", ours, sdpa(q, k, v, is_causal=True), 1.15)


def paged(dim: int, dtype: torch.dtype) -> list[Pair]:
    q, k, v = tensors(1, 4096, dim, dtype)
    columns = k.shape[2] // BLOCK_SIZE
    table = torch.randperm(columns, dtype=torch.int32).view(1, columns)
    contiguous = fia(q, k, v, actual_seq_lengths_kv=[USED])
    pairs = []
    for form in ("BnBsH", "BnNBsD"):
        caches = []
        for tensor in (k, v):
            blocks = (
                tensor[0].unflatten(1, (columns, BLOCK_SIZE)).transpose(0, 1)
            )  # (blocks, N, block_size, D)
            cache = torch.empty_like(blocks.contiguous())
            cache[table[0].long()] = blocks
            caches.append(cache if form == "BnNBsD" else cache.transpose(1, 2).flatten(2))
        options = {"block_table": table, "block_size": BLOCK_SIZE, "actual_seq_lengths_kv": [USED]}
        name = f"paged {form} / contiguous decode {USED}, D {dim}"
        pairs.append(Pair(name, fia(q, *caches, **options), contiguous, 1.5, GATHERED))
    return pairs


def capacity(dim: int, dtype: torch.dtype) -> Pair:
    runs = [fia(*tensors(1, size, dim, dtype), actual_seq_lengths_kv=[USED]) for size in (16384, 1024)]
    return Pair(f"decode {USED} of 16384 / of 1024, D {dim}", runs[0], runs[1], 1.15)


def small_call() -> Pair:
    """A decode step so small that the fixed cost of a call is all there is."""
    q, k, v = tensors(1, 17, 64, torch.float32)
    return Pair("decode 17, D 64", fia(q, k, v, actual_seq_lengths_kv=[17]), sdpa(q, k, v), math.inf)


def report(table: Table, dtype: torch.dtype, pair: Pair) -> bool:
    """Measure ``pair`` and add its row; whether it's within its limit."""
    runs = (pair.ours, pair.reference)
    for run in runs:
        run()
    ours, beside = medians(runs, ROUNDS)
    ratio = ours / beside
    good = ratio <= pair.limit
    shown = f"{ratio:.2f}" if good else f"[red]{ratio:.2f}"
    table.add_row(
        pair.name, str(dtype).removeprefix("torch."), f"{ours:.3f}", f"{beside:.3f}", shown, f"{pair.limit}"
    )
    if not good:
        table.add_row(f"  {pair.why}", "", "", "", "", "")
    return good


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ensure_npu_ops()
    table = Table("case", "dtype", "ours ms", "beside ms", "ratio", "limit", title="CPU kernels, one thread")
    good = True
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for dim in (64, 128):
                for pair in [
                    decode(dim, dtype),
                    prefill(dim, dtype),
                    *paged(dim, dtype),
                    capacity(dim, dtype),
                ]:
                    good &= report(table, dtype, pair)
        report(table, torch.float32, small_call())
    Console(width=132).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
