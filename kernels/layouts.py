"""FIA's ``input_layout`` strings: how queries and keys are laid out, and how the output is.

``A_B`` means queries and keys in layout A, output in layout B. Letters: B batch, N heads, S sequence,
D head dim, H = N * D, T tokens of all requests one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Size = Any
"""An ``int``, or a ``torch.SymInt`` where shapes are symbolic."""


@dataclass(frozen=True)
class Layout:
    query: str
    output: str

    @property
    def packed(self) -> bool:
        """Requests lie one after the other, separated by cumulative lengths."""
        return "T" in self.query

    @property
    def rank(self) -> int:
        """Dimensions of the query."""
        return len(self.query)


LAYOUTS: dict[str, Layout] = {
    "BSH": Layout("BSH", "BSH"),
    "BSND": Layout("BSND", "BSND"),
    "BNSD": Layout("BNSD", "BNSD"),
    "TND": Layout("TND", "TND"),
    "NTD": Layout("NTD", "NTD"),
    "NSD": Layout("NSD", "NSD"),
    "BNSD_BSND": Layout("BNSD", "BSND"),
    "BSH_BNSD": Layout("BSH", "BNSD"),
    "BSND_BNSD": Layout("BSND", "BNSD"),
    "BSH_NBSD": Layout("BSH", "NBSD"),
    "BSND_NBSD": Layout("BSND", "NBSD"),
    "BNSD_NBSD": Layout("BNSD", "NBSD"),
    "TND_NTD": Layout("TND", "NTD"),
    "NTD_TND": Layout("NTD", "TND"),
}


@dataclass(frozen=True)
class QuerySizes:
    """``batch`` is 1 and ``seq`` is T for the packed layouts; ``batch`` is 1 for NSD."""

    batch: Size
    heads: Size
    seq: Size
    head_dim: Size


def query_sizes(shape: tuple[Size, ...], layout: Layout, num_heads: int) -> QuerySizes:
    """Sizes of a query of ``shape`` laid out as ``layout.query``."""
    if layout.query == "BSH":
        return QuerySizes(shape[0], num_heads, shape[1], shape[2] // num_heads)
    size = dict(zip(layout.query.replace("T", "S"), shape, strict=True))
    return QuerySizes(size.get("B", 1), size["N"], size["S"], size["D"])


def value_head_dim(shape: tuple[Size, ...], layout: Layout, num_key_value_heads: int, paged: bool) -> Size:
    """D of a value tensor of ``shape``, not counting what is packed into one element.

    Paged caches are BnBsH, BnNBsD or NZ (blocks, heads, D / d0, block_size, d0), whatever the query is.
    """
    if len(shape) == 3 and (paged or layout.query == "BSH"):
        return shape[2] // num_key_value_heads
    return shape[2] * shape[4] if len(shape) == 5 else shape[-1]


def output_shape(layout: Layout, sizes: QuerySizes, value_dim: Size) -> list[Size]:
    """Shape of the attention output, laid out as ``layout.output``."""
    if layout.output == "BSH":
        return [sizes.batch, sizes.seq, sizes.heads * value_dim]
    size = {"B": sizes.batch, "N": sizes.heads, "S": sizes.seq, "T": sizes.seq, "D": value_dim}
    return [size[letter] for letter in layout.output]


def lse_shape(layout: Layout, sizes: QuerySizes) -> list[Size]:
    """Shape of the log-sum-exp: (T, N, 1) for the packed layouts, otherwise (B, N, S, 1)."""
    if layout.packed:
        return [sizes.seq, sizes.heads, 1]
    return [sizes.batch, sizes.heads, sizes.seq, 1]
