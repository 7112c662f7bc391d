"""The one object between recognising and lowering: an attention site.

A recogniser turns some spelling of attention into an :class:`AttentionSite`; the lowering
turns a site into fused operator calls or declines with a reason. Nothing else passes
between the two, so a new spelling needs no new lowering and a new operator no new matcher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx

Dim = Any
"""A size: an ``int``, or a ``torch.SymInt`` where the graph is dynamic."""


Views = tuple[tuple[Any, tuple[Any, ...]], ...]
"""View operators with their other arguments, in the order in which they are applied."""


@dataclass(frozen=True)
class MaskTerm:
    """One thing done to the scores before the softmax, in program order.

    ``node``, seen through ``views``, broadcasts to the scores' (B, N, Q, K).

    * ``keep``: bool, True takes part; elsewhere the score becomes ``fill``.
    * ``drop``: bool, True is masked out; there the score becomes ``fill``.
    * ``add``: float, added to the scaled scores; ``fill`` is unused.
    * ``causal``: no node; query row i sees keys j <= i (aligned at the top left corner).
    """

    kind: Literal["keep", "drop", "add", "causal"]
    node: fx.Node | None = None
    fill: float = float("-inf")
    views: Views = ()


@dataclass(frozen=True)
class Operand:
    """A tensor a site reads: ``node`` seen through ``views`` (view operators with their other arguments).

    ``read_at`` is where the program reads the value. The fused call reads it later, which is the
    same only while nothing writes to it in between.
    """

    node: fx.Node
    read_at: fx.Node
    views: Views = ()


@dataclass(frozen=True)
class ScoreShape:
    """Sizes of the scores (B, N, Q, K): batch, query heads, query length, key length."""

    batch: Dim
    heads: Dim
    query: Dim
    key: Dim


@dataclass(frozen=True)
class AttentionSite:
    """softmax(scale * query @ key^T, masked) @ value, found at ``output``.

    ``query`` is (B, N, Q, D), ``key`` (B, N_kv, K, D), ``value`` (B, N_kv, K, D_v): K and V
    with their own head count, from before any ``repeat_kv``. Query head n reads K/V head
    n // (N // N_kv). ``output`` is the node that the fused call replaces: the (B, N, Q, D_v)
    result seen through ``output_views``.
    """

    form: Literal["sdpa", "softmax", "mla"]
    output: fx.Node
    output_views: Views
    query: Operand
    key: Operand
    value: Operand
    scores: ScoreShape
    num_key_value_heads: int
    head_dim: int
    value_head_dim: int
    scale: float
    masks: tuple[MaskTerm, ...] = ()
    sink: Operand | None = None
    """Broadcasts to (B, N, Q, 1): a logit that joins each row's softmax sum and has no value."""
    softcap: float | None = None
    """Scaled scores s become softcap * tanh(s / softcap) before masks are added; None: not capped."""
    zero_if_empty: bool = False
    """Whether a row that the one mask leaves nothing of is 0, whatever its masked scores hold."""
    nan_if_void: bool = False
    """Whether a row of nothing but minus infinity is NaN in spite of a sink, which joins behind V."""
    softmax_dtype: Any = None
    """dtype in which the program computes the scores; finite mask fills are judged in it."""
    cache: Literal["none", "static", "dynamic"] = "none"
    module_path: str = ""
    source: str = ""
    """``file:line`` in the user's program."""
    notes: tuple[str, ...] = field(default=())

    @property
    def plain_softmax(self) -> bool:
        """Whether masked scores alone go into the softmax: no soft cap bends them, no sink joins them."""
        return self.softcap is None and self.sink is None


@dataclass(frozen=True)
class Refusal:
    """Why something that looks like attention was left as it is; a sentence a user can act on."""

    node: fx.Node
    reason: str
    form: str = ""
    module_path: str = ""
    source: str = ""


@dataclass(frozen=True)
class SiteOutcome:
    """One row of a report: what became of one attention computation.

    ``op`` is None where the site was left alone; ``reason`` then says why.
    """

    name: str
    form: str
    module_path: str
    source: str
    mask: str = ""
    op: str | None = None
    input_layout: str = ""
    sparse_mode: int | None = None
    lengths: str = ""
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    query_len: str = ""
    key_len: str = ""
    cache: str = "none"
    reason: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def lowered(self) -> bool:
        return self.op is not None
