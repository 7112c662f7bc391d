"""An FIA call by meaning: v1 and v2 say the same under different names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.layouts import LAYOUTS

ensure_graph_ops()

ABSENT: Mapping[str, Any] = {"sparse_mode": 0, "input_layout": "BSH"}
"""Defaults that differ from None, of the arguments read here (torch_npu's schemas)."""


@dataclass(frozen=True)
class Names:
    """What one version calls the arguments whose names differ."""

    heads: str
    scale: str
    q_lengths: str
    kv_lengths: str
    lse: str


V1 = Names("num_heads", "scale", "actual_seq_lengths", "actual_seq_lengths_kv", "softmax_lse_flag")
V2 = Names("num_query_heads", "softmax_scale", "actual_seq_qlen", "actual_seq_kvlen", "return_softmax_lse")

OPERATORS: Mapping[Any, Names] = {
    torch.ops.ascend_fia.npu_fused_infer_attention_score.default: V1,
    torch.ops.ascend_fia.npu_fused_infer_attention_score_v2.default: V2,
}


@dataclass(frozen=True)
class FiaCall:
    """One call of FIA. ``arguments`` are the keyword arguments by the operator's own names.

    Tensors may be real, fake or graph nodes; only :meth:`run` needs them to be tensors.
    """

    operator: Any
    query: Any
    key: Any
    value: Any
    arguments: Mapping[str, Any]

    @property
    def names(self) -> Names:
        return OPERATORS[self.operator]

    def argument(self, name: str) -> Any:
        return self.arguments.get(name, ABSENT.get(name))

    @property
    def input_layout(self) -> str:
        return str(self.argument("input_layout"))

    @property
    def num_heads(self) -> int:
        return int(self.arguments.get(self.names.heads, 1))

    @property
    def num_key_value_heads(self) -> int:
        return int(self.arguments.get("num_key_value_heads", 0)) or self.num_heads

    def with_arguments(self, **changes: Any) -> FiaCall:
        """The call with arguments replaced; None removes one."""
        merged = {**self.arguments, **changes}
        return replace(self, arguments={name: value for name, value in merged.items() if value is not None})

    def run(self) -> tuple[Tensor, Tensor]:
        """``(output, lse)``; the lse is meaningless unless the call asks for it."""
        result: tuple[Tensor, Tensor] = self.operator(self.query, self.key, self.value, **self.arguments)
        return result


def to_rows(tensor: Tensor, letters: str, heads: int) -> Tensor:
    """A tensor laid out as ``letters`` (BNSD, BSND, BSH, NBSD, TND, NTD) as (rows, N, D).

    Rows are in order of batch, then sequence.
    """
    if letters == "BSH":
        return tensor.unflatten(-1, (heads, tensor.shape[-1] // heads)).flatten(0, 1)
    if letters == "BSND":
        return tensor.flatten(0, 1)
    if letters == "BNSD":
        return tensor.transpose(1, 2).flatten(0, 1)
    if letters == "NBSD":
        return tensor.permute(1, 2, 0, 3).flatten(0, 1)
    return tensor.transpose(0, 1) if letters == "NTD" else tensor


def from_rows(rows: Tensor, letters: str, batch: Any) -> Tensor:
    """The inverse of :func:`to_rows`."""
    if letters in ("TND", "NTD"):
        return rows.transpose(0, 1) if letters == "NTD" else rows
    split = rows.unsqueeze(0) if batch == 1 else rows.unflatten(0, (batch, -1))
    if letters == "BSH":
        return split.flatten(2)
    order = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "NBSD": (2, 0, 1, 3)}[letters]
    return split.permute(order)


def lse_rows(lse: Tensor, input_layout: str) -> Tensor:
    """FIA's log-sum-exp as (rows, N): it is (T, N, 1) for the packed layouts, else (B, N, S, 1).

    That holds whatever layout the output has, so the two must not be flattened alike.
    """
    if LAYOUTS[input_layout].packed:
        return lse.squeeze(-1)
    return lse.squeeze(-1).transpose(1, 2).flatten(0, 1)
