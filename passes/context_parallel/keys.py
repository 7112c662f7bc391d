"""The keys of all ranks: what is sent, and what attention reads of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from npu_compile.kernels.layouts import LAYOUTS
from npu_compile.passes.mla.site import HeadRows

from .collectives import Algorithm, AllGather
from .fia_call import FiaCall, to_rows


@dataclass(frozen=True)
class Keys:
    """(rows, N_kv, D) keys and (rows, N_kv, D_v) values; ``rope`` (rows, N_kv, R) is the keys' part apart."""

    key: Tensor
    value: Tensor
    rope: Tensor | None

    def rows(self, index: Tensor) -> Keys:
        """The rows of ``index``, in its order."""
        return self._each(lambda part: part.index_select(0, index))

    def widened(self, head_dim: int) -> Keys:
        """Keys and values with zeros behind their head dims, up to ``head_dim``."""
        wide = replace(self, rope=None)._each(lambda part: widened(part, head_dim))
        return replace(wide, rope=self.rope)

    def pages(self, block_size: int) -> Keys:
        """The rows as a paged cache: (blocks, block_size, N_kv * D)."""
        return self._each(lambda part: part.reshape(-1, block_size, part.shape[1] * part.shape[2]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Keys:
        key = change(self.key)
        value = key if self.value is self.key else change(self.value)
        return Keys(key, value, None if self.rope is None else change(self.rope))


def widened(rows: Tensor, head_dim: int) -> Tensor:
    """Zeros behind the head dim change neither scores nor the output's first columns."""
    return F.pad(rows, (0, head_dim - rows.shape[-1])) if head_dim > rows.shape[-1] else rows


@dataclass(frozen=True)
class LatentKeys:
    """What MLA's keys and values are expanded from: far less to send than they are.

    ``latent`` is (1, 1, T, L), ``rope`` (1, 1, T, R), the weights (rows, L); tensors or graph nodes.
    """

    latent: Any
    rope: Any
    key_weight: Any
    value_weight: Any
    key_rows: HeadRows
    value_rows: HeadRows
    heads: int

    def expand(self, latent: Tensor, rope: Tensor) -> Keys:
        """Keys and values of latents (rows, 1, L) and ropes (rows, 1, R) of any rank."""
        keys = F.linear(latent.squeeze(1), self.key_weight)
        shared = self.value_weight is self.key_weight
        values = keys if shared else F.linear(latent.squeeze(1), self.value_weight)
        return Keys(
            self._of_heads(keys, self.key_rows),
            self._of_heads(values, self.value_rows),
            rope.expand(-1, self.heads, -1),
        )

    def _of_heads(self, projected: Tensor, rows: HeadRows) -> Tensor:
        """(rows, N, width): head n has features ``start + n * stride`` to that plus ``width``."""
        first, inner = (0, rows.start) if rows.start + rows.width <= rows.stride else (rows.start, 0)
        features = projected[:, first : first + self.heads * rows.stride]
        return features.unflatten(1, (self.heads, rows.stride))[..., inner : inner + rows.width]


def gather_keys(call: FiaCall, latents: LatentKeys | None, rows_per_rank: int) -> Algorithm[Keys]:
    """The keys of all ranks, rank-major, each rank's padded to ``rows_per_rank``.

    V is sent first, being ready before K is rotated; a latent that is both is sent once.
    """
    letters, heads = LAYOUTS[call.input_layout].query, call.num_key_value_heads
    if latents is not None:
        sent = [to_rows(tensor, "BNSD", 1) for tensor in (latents.latent, latents.rope)]
    else:
        rope = call.argument("key_rope")
        tensors = [call.value] if call.value is call.key else [call.value, call.key]
        sent = [to_rows(tensor, letters, heads) for tensor in [*tensors, *([] if rope is None else [rope])]]
    gathered = yield tuple(AllGather(_padded(part, rows_per_rank)) for part in sent)
    if latents is not None:
        return latents.expand(*gathered)
    has_rope = call.argument("key_rope") is not None
    return Keys(gathered[-2] if has_rope else gathered[-1], gathered[0], gathered[-1] if has_rope else None)


def _padded(rows: Tensor, rows_per_rank: int) -> Tensor:
    """``rows`` followed by zeros; a step whose metadata counts fewer rows than there are is an error."""
    return torch.cat([rows, rows.new_zeros(rows_per_rank - rows.shape[0], *rows.shape[1:])])
