"""What the MLA recogniser adds to an attention site: the latent behind its keys and values.

MLA (DeepSeek-V2, arXiv 2405.04434) keeps one latent per token and a rope part that all heads share:

    key[b, n, s]   = [latent[b, s] @ W_UK[n]^T | key_rope[b, s]]      (nope | rope)
    value[b, n, s] =  latent[b, s] @ W_UV[n]^T
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from npu_compile.passes.recognise.cache_kind import CacheKind
from npu_compile.passes.site import AttentionSite, Operand


@dataclass(frozen=True)
class HeadRows:
    """W_UK or W_UV as rows of a projection's weight.

    ``weight`` is (rows, L); head n has rows ``start + n * stride`` to that plus ``width``. It is
    read where the call is made, never copied, so a weight that is updated in place counts at once.
    """

    weight: fx.Node
    start: int
    stride: int
    width: int

    def in_shares(self, heads: int, rows: int) -> tuple[int, int]:
        """Cut into one share of ``stride`` rows a head: where the shares begin, and this part in each."""
        return (0, self.start) if heads * self.stride == rows else (self.start, 0)


@dataclass(frozen=True)
class MlaSite:
    """An attention site whose key and value come from a latent; all tensors in (B, N, S, D) order.

    ``latent`` (B, 1, K, L) and ``key_rope`` (B, 1, K, R) are what a cache of MLA holds;
    ``key_nope`` (B, N, K, P) is ``latent`` expanded by ``key_up``, and ``attention.value``
    (B, N, K, V) by ``value_up``. ``query_nope`` and ``query_rope`` are the query's parts, from
    before they were put together where the program has them apart.
    """

    attention: AttentionSite
    latent: Operand
    key_rope: Operand
    key_nope: Operand
    query_nope: Operand
    query_rope: Operand
    key_up: HeadRows
    value_up: HeadRows
    latent_dim: int
    nope_dim: int
    rope_dim: int
    cache: CacheKind
    """Where the latent lives."""


@dataclass(frozen=True)
class NotAbsorbable:
    """Keys shaped like MLA's, per head beside a shared part, without a latent that could be used: why."""

    reason: str
