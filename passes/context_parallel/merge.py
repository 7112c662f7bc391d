"""Attention over parts of the keys, and putting the parts together by their log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from npu_compile.kernels.partial_attention import EMPTY_BELOW, FLOOR, MOST_PARTS


@dataclass(frozen=True)
class Lse:
    """log(sum(exp(scores))) of each row and head.

    ``values`` is (rows, N) float32 and -inf where the row has no key; ``base`` is that of the
    logarithm: FIA's is "e", kernels that work with exp2 have "2".
    """

    values: Tensor
    base: Literal["e", "2"] = "e"

    def natural(self) -> Tensor:
        return self.values if self.base == "e" else self.values * math.log(2)


@dataclass(frozen=True)
class Partial:
    """Attention over a part of the keys: ``out`` (rows, N, D), normalised within the part, and its lse.

    A row without a key has out 0 and lse -inf; :meth:`sanitised` makes it so.
    """

    out: Tensor
    lse: Lse

    @classmethod
    def sanitised(cls, out: Tensor, lse: Lse) -> Partial:
        """From what an operator returned.

        Operators mark rows without a key by +inf, -inf, NaN or about -3.4e38, and may leave
        anything in their output.
        """
        values = lse.natural().float()
        valid = torch.isfinite(values) & (values > EMPTY_BELOW)
        out = torch.where(valid.unsqueeze(-1), out, 0.0)
        return cls(out, Lse(torch.where(valid, values, float("-inf"))))


def merge(parts: Sequence[Partial]) -> Partial:
    """The attention over all keys from the attention over disjoint parts of them.

    out = sum_i exp(lse_i - lse) out_i with lse = log(sum_i exp(lse_i)), in float32. A row that is
    empty in every part gives out 0 and lse -inf. The order and grouping of parts don't matter.
    """
    parts = list(parts)
    while len(parts) > 1:
        groups = [parts[first : first + MOST_PARTS] for first in range(0, len(parts), MOST_PARTS)]
        parts = [_update(group) for group in groups]
    return parts[0]


def _update(parts: Sequence[Partial]) -> Partial:
    rows, heads, dim = parts[0].out.shape
    lses = [part.lse.natural().clamp(min=FLOOR).flatten() for part in parts]
    outs = [part.out.float().flatten(0, 1) for part in parts]
    # update_type 1: with 0 the operator leaves its second output undefined.
    out, lse = torch.ops.npu.npu_attention_update.default(lses, outs, 1)
    lse = lse.view(rows, heads)
    return Partial(out.view(rows, heads, dim), Lse(torch.where(lse > FLOOR / 2, lse, float("-inf"))))
