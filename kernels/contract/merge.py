"""Merging attention over parts of the keys, by log-sum-exp or by maximum and sum."""

from __future__ import annotations

from typing import Any

import torch

from ..partial_attention import MOST_PARTS
from .call import Call, differing
from .facts import TensorFacts, proven, unequal
from .rule import DEVICES, META, rule

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _show(parts: tuple[TensorFacts, ...]) -> str:
    return ", ".join(map(str, parts))


@rule("update.lists", "lse", f"lse and local_out are lists of the same length, 1 to {MOST_PARTS}")
def lists(call: Call) -> Any:
    counts = len(call["lse"]), len(call["local_out"])
    return (
        f"{counts[0]} with {counts[1]} local_out"
        if counts[0] != counts[1] or not 1 <= counts[0] <= MOST_PARTS
        else None
    )


@rule("update.lse", "lse", "each is float32 (M,)")
def lse(call: Call) -> Any:
    parts, rows = call["lse"], call["local_out"][0].shape[0] if call["local_out"][0].shape else 0
    wrong = [t for t in parts if t.dtype != torch.float32 or unequal(t.shape, (rows,))]
    return _show(parts) if wrong else None


@rule("update.local_out", "local_out", "each is (M, D), of one float dtype")
def local_out(call: Call) -> Any:
    parts = call["local_out"]
    first = parts[0]
    ok = len(first.shape) == 2 and first.dtype in FLOATS
    ok = ok and not any(t.dtype != first.dtype or unequal(t.shape, first.shape) for t in parts)
    return None if ok else _show(parts)


@rule("update.head_dim", "local_out", "D is a multiple of 8 from 8 to 512", targets=DEVICES)
def head_dim(call: Call) -> Any:
    size = call["local_out"][0].shape[-1]
    wrong = proven(size < 8) or proven(size > 512) or proven(size % 8 != 0)
    return _show(call["local_out"]) if wrong else None


@rule("update.type", "update_type", "it is 0, or 1 for the merged lse too")
def update_type(call: Call) -> Any:
    return call["update_type"] if call["update_type"] not in (0, 1) else None


STATISTICS = ("prev_softmax_max", "prev_softmax_sum", "cur_softmax_max", "cur_softmax_sum")


@rule("ring.layout", "input_layout", "it is SBH or TND", META)
def ring_layout(call: Call) -> Any:
    return call["input_layout"] if call["input_layout"] not in ("SBH", "TND") else None


@rule("ring.softmax_layout", "input_softmax_layout", "it is empty, SBH or TND", META)
def ring_softmax_layout(call: Call) -> Any:
    layout = call["input_softmax_layout"]
    return layout if layout not in ("", "SBH", "TND") else None


@rule("ring.attn_out", "prev_attn_out", "it and cur_attn_out are 3-D of one shape and float dtype", META)
def ring_attn_out(call: Call) -> Any:
    prev, cur = call.tensor("prev_attn_out"), call.tensor("cur_attn_out")
    ok = len(prev.shape) == 3 and not unequal(prev.shape, cur.shape)
    return (
        None if ok and prev.dtype == cur.dtype and prev.dtype in FLOATS else f"{prev} with cur_attn_out {cur}"
    )


@rule(
    "ring.statistics",
    "prev_softmax_max",
    "maxima and sums are float32 of one shape, repeated 8 times in the last dim: 4-D for SBH, 3-D for TND",
    META,
)
def ring_statistics(call: Call) -> Any:
    parts = tuple(call.tensor(name) for name in STATISTICS)
    first = parts[0]
    ok = len(first.shape) == (3 if call["input_layout"] == "TND" else 4) and not proven(first.shape[-1] != 8)
    ok = ok and all(t.dtype == torch.float32 and not unequal(t.shape, first.shape) for t in parts)
    return None if ok else _show(parts)


@rule("ring.lengths", "actual_seq_qlen", "TND needs cumulative int64 lengths with a leading 0", META)
def ring_lengths(call: Call) -> Any:
    lengths = call.optional("actual_seq_qlen")
    if lengths is None:
        return "None" if call["input_layout"] == "TND" else None
    return lengths if lengths.dtype != torch.int64 else None


@rule("ring.device", "prev_attn_out", "all tensors are on one device")
def ring_device(call: Call) -> Any:
    return differing(call, ("prev_attn_out", "cur_attn_out", *STATISTICS), "device")


UPDATE_FORM = (lists,)
UPDATE_RULES = (local_out, lse, update_type, head_dim)
RING_RULES = (ring_layout, ring_softmax_layout, ring_attn_out, ring_statistics, ring_lengths, ring_device)
