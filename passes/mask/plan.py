"""How FIA is told a mask: sparse mode, band, key lengths, and an explicit mask only as the last resort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from npu_compile.passes.mask.atoms import Causal, KeyBefore, Window
from npu_compile.passes.mask.integers import emittable
from npu_compile.passes.mask.linear import Linear, size
from npu_compile.passes.mask.meaning import MaskMeaning
from npu_compile.passes.mask.prover import Prover
from npu_compile.passes.site import ScoreShape

UNBOUNDED = 2147483647
"""The operator's default for pre_tokens and next_tokens: no limit on that side."""


@dataclass(frozen=True)
class Bound:
    """Key lengths as the smallest of some numbers, each the same for all batch elements or one per element.

    ``clamped``: the numbers may lie outside of [0, key length] and are cut off there. ``full_if_empty``:
    where no key is left, the length is the whole key length (the row becomes a mean over all values).
    """

    limits: tuple[Linear, ...]
    clamped: bool = False
    full_if_empty: bool = False


@dataclass(frozen=True)
class FromMask:
    """Key lengths from the emitted mask: each batch element's last key that takes part, plus one."""


Lengths: TypeAlias = "Bound | FromMask"


@dataclass(frozen=True)
class MaskPlan:
    """Arguments of FIA for a mask.

    * ``atten_mask``: None, the shared 2048 x 2048 "causal" mask, or an "explicit" one to be emitted.
    * ``lengths``: what ``actual_seq_lengths_kv`` is made from; None where all keys count.
    * ``empty_rows``: what a query row with nothing to attend gives: None if there is none, "zero" for the
      operator's own 0, "mean" for the mean of all values. For "mean", the caller sets the query to 0 in the
      rows that ``emit_empty_rows`` gives; mask, bias and lengths are emitted such that the operator then
      returns the mean.
    * ``patch_void_rows``: a mask that differs between heads may have rows of nothing but -inf. The operator
      can't give 0 there: the caller puts 0 (SDPA) or NaN (hand-written) where ``emit_void_rows`` says.
    """

    sparse_mode: Literal[0, 1, 2, 3, 4]
    pre_tokens: int
    next_tokens: int
    atten_mask: Literal["causal", "explicit"] | None
    lengths: Lengths | None
    empty_rows: Literal["zero", "mean"] | None
    patch_void_rows: bool
    words: str
    meaning: MaskMeaning
    scores: ScoreShape


def plan_mask(meaning: MaskMeaning, scores: ScoreShape, zero_if_empty: bool = False) -> MaskPlan:
    """The cheapest arguments that mean exactly ``meaning``.

    ``zero_if_empty``: a row with nothing to attend gives 0 whatever its masked scores hold, as beside a sink.
    """
    return _Planner(meaning, scores, zero_if_empty).plan()


class _Planner:
    def __init__(self, meaning: MaskMeaning, scores: ScoreShape, zero_if_empty: bool) -> None:
        self._meaning = meaning
        self._scores = scores
        self._prover: Prover = meaning.prover
        self._query, self._key = size(scores.query), size(scores.key)
        self._one_row = self._query == Linear(1)
        self._empty: Literal["zero", "mean"] | None = None
        if meaning.maybe_empty_rows:
            zero = meaning.dropped == "inf" or zero_if_empty
            self._empty = "zero" if zero and not meaning.at_run_time else "mean"
        if meaning.by_head:
            self._empty = "mean"

    def plan(self) -> MaskPlan:
        if self._meaning.by_head:
            return self._made(0, lengths=FromMask())
        keep = self._meaning.keep
        causal = [a.offset for a in keep.atoms if isinstance(a, Causal)]
        windows = [a.start for a in keep.atoms if isinstance(a, Window)]
        lengths = [a.length for a in keep.atoms if isinstance(a, KeyBefore)]
        understood = len(causal) + len(windows) + len(lengths) == len(keep.atoms)
        if self._meaning.at_run_time or not understood or not all(map(emittable, causal + windows + lengths)):
            return self._explicit()
        if not causal and not windows:
            return self._plain(0, self._bound(lengths)) if lengths else self._plain(0, None)
        if self._empty == "mean" or len(causal) > 1 or len(windows) > 1:
            return self._explicit()
        offset, start = next(iter(causal), None), next(iter(windows), None)
        if start is None and offset == Linear() and lengths:
            return self._top_left(lengths) or self._explicit()
        if lengths:
            return self._explicit()
        return self._band(offset, start) or self._explicit()

    def _plain(self, mode: Literal[0, 2, 3], lengths: Lengths | None) -> MaskPlan:
        return self._made(mode, lengths=lengths, atten_mask="causal" if mode else None)

    def _made(
        self,
        mode: Literal[0, 1, 2, 3, 4],
        pre: int = UNBOUNDED,
        next_: int = UNBOUNDED,
        atten_mask: Literal["causal", "explicit"] | None = None,
        lengths: Lengths | None = None,
    ) -> MaskPlan:
        return MaskPlan(
            sparse_mode=mode,
            pre_tokens=pre,
            next_tokens=next_,
            atten_mask=atten_mask,
            lengths=lengths,
            empty_rows=self._empty,
            patch_void_rows=self._meaning.by_head,
            words=self._meaning.words,
            meaning=self._meaning,
            scores=self._scores,
        )

    def _explicit(self) -> MaskPlan:
        return self._made(0 if self._one_row else 1, atten_mask="explicit", lengths=FromMask())

    def _bound(self, limits: list[Linear]) -> Bound:
        """Lengths from the predicate; the operator has a row that keeps nothing give 0."""
        nonnegative = self._prover.nonnegative
        inside = [limit for limit in limits if nonnegative(self._key - limit)]
        clamped = not inside or not all(nonnegative(limit) for limit in limits)
        return Bound(tuple(limits), clamped, self._empty == "mean")

    def _top_left(self, limits: list[Linear]) -> MaskPlan | None:
        return self._plain(2, self._bound(limits)) if self._several_rows() else None

    def _several_rows(self) -> bool:
        """Whether there provably are two query rows: with a single one the operator ignores mode and band."""
        return self._prover.nonnegative(self._query - 2)

    def _band(self, offset: Linear | None, start: Linear | None) -> MaskPlan | None:
        """Causality, a window or both. The operator counts from the bottom right of the true lengths."""
        corner = self._key - self._query
        if offset is not None and start is None and offset == corner:
            return self._plain(3, None)
        nonnegative, limit = self._prover.nonnegative, None
        if offset is not None and nonnegative(corner - offset) and offset != corner:
            limit = offset + self._query
            if not nonnegative(limit):
                return None
            if start is None and offset == Linear() and self._several_rows():
                return self._plain(2, Bound((limit,)))
            if start is None:
                return self._plain(3, Bound((limit,)))
            corner = offset
        if start is None and offset == Linear() and self._several_rows():
            return self._plain(2, None)
        pre = Linear(UNBOUNDED) if start is None else corner - start
        next_ = Linear(UNBOUNDED) if offset is None else offset - corner
        if not (pre.is_const and next_.is_const and self._several_rows()):
            return None
        legal = self._legal(pre, self._query) and self._legal(next_, self._key)
        if not legal or pre.const + next_.const < 0:
            return None
        lengths = Bound((limit,)) if limit is not None else None
        return self._made(4, min(pre.const, UNBOUNDED), min(next_.const, UNBOUNDED), "causal", lengths)

    def _legal(self, tokens: Linear, length: Linear) -> bool:
        """pre_tokens >= -Lq and next_tokens >= -Lkv, as the operator demands."""
        return self._prover.nonnegative(tokens + length)
