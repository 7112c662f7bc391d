"""What a site's mask means: which keys take part, what else is added, and what masked scores become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import fx

from npu_compile.passes.mask.atoms import Predicate, origin
from npu_compile.passes.mask.facts import learn_positions
from npu_compile.passes.mask.formula import And, Compare, Formula, Or, conjunction, disjunction, substitute
from npu_compile.passes.mask.interpret import Interpreter
from npu_compile.passes.mask.linear import Linear, size
from npu_compile.passes.mask.parts import MaskNotExpressible, Part, Splitter, removes
from npu_compile.passes.mask.prover import Prover
from npu_compile.passes.mask.rules import RULES
from npu_compile.passes.site import MaskTerm, ScoreShape
from npu_compile.passes.values import Writes, same


@dataclass(frozen=True)
class MaskMeaning:
    """The meaning of all mask terms of one site.

    * ``keep``: where a key takes part.
    * ``bias``: nodes that are added to the scaled scores: floats that aren't provably 0 or minus infinity,
      and masks that differ between heads, which the operator's own mask can't say.
    * ``dropped``: what a masked score holds. A row with nothing to attend is then 0 under SDPA and NaN in a
      hand-written softmax ("inf"), or the mean of all values ("finite").
    * ``maybe_empty_rows``: False only if every query row provably keeps a key.
    * ``at_run_time``: the terms can't be told apart before they are summed, which the emitted graph does.
    * ``by_head``: a mask differs between heads. Then all terms together become one bias, and ``keep`` is
      what the others among them say.
    """

    keep: Predicate
    bias: tuple[fx.Node, ...]
    dropped: Literal["inf", "finite"]
    maybe_empty_rows: bool
    at_run_time: bool
    by_head: bool
    words: str
    parts: tuple[Part, ...]
    softmax_dtype: torch.dtype
    prover: Prover = field(compare=False, repr=False)


class MaskAnalyser:
    """Analyses the masks of one graph; a mask that many layers share is analysed once.

    The graph may grow while it is in use, but nodes that exist must stay as they are.
    """

    def __init__(self, graph: fx.Graph, writes: Writes | None = None) -> None:
        self.graph = graph
        self.writes = writes if writes is not None else Writes(graph)
        self.prover = Prover(graph)
        self.interpreter = Interpreter(graph, self.writes, self.prover, RULES)
        self._meanings: dict[object, MaskMeaning] = {}
        learn_positions(self.interpreter)

    def analyse(
        self,
        masks: Sequence[MaskTerm],
        scores: ScoreShape,
        softmax_dtype: torch.dtype | None = None,
        reader: fx.Node | None = None,
    ) -> MaskMeaning:
        """The meaning of ``masks``, applied in that order to scores of shape ``scores``.

        ``reader`` is the last node that may read them; without it, no write may follow a mask's definition.

        Raises:
            MaskNotExpressible: the fused operator has no way to say it; the message says why.
        """
        for mask in masks:
            if mask.node is not None and self._written(mask.node, reader):
                raise MaskNotExpressible(
                    f"the mask {mask.node.name} is written to in place before it is read"
                )
        dtype = softmax_dtype or torch.float32
        key = (tuple(masks), _sizes(scores), dtype)
        found = self._meanings.get(key)
        if found is None:
            found = self._meanings[key] = self._analyse(masks, scores, dtype)
        return found

    def _written(self, node: fx.Node, reader: fx.Node | None) -> bool:
        return any(write > node and (reader is None or write < reader) for write in self.writes.to(node))

    def _analyse(self, masks: Sequence[MaskTerm], scores: ScoreShape, dtype: torch.dtype) -> MaskMeaning:
        if size(scores.key) == Linear():
            raise MaskNotExpressible("there are no keys")
        splitter = Splitter(self.interpreter, scores, dtype, alone=len(masks) == 1)
        parts = tuple(part for term in masks for part in splitter.split(term))
        key = (parts, _sizes(scores), dtype)
        if key not in self._meanings:
            self._meanings[key] = self._meaning(parts, scores, dtype)
        return self._meanings[key]

    def _meaning(self, parts: tuple[Part, ...], scores: ScoreShape, dtype: torch.dtype) -> MaskMeaning:
        shape = (scores.batch, scores.heads, scores.query, scores.key)
        shared = [part for part in parts if not part.per_head]
        kept = conjunction(part.keep for part in shared if part.keep is not None)
        kept = substitute(kept, {i - 4: Linear() for i, n in enumerate(shape) if same(n, 1)})
        keep = Predicate.of(self.prover.simplify(_decided(kept, shape, self.prover), shape))
        unknown = any(part.keep is None for part in shared)
        empty = unknown or not every_row_keeps_a_key(keep, scores, self.prover)
        fills = [fill for part in shared for fill in part.fills]
        at_run_time = _needs_run_time(shared, empty, dtype)
        bias = tuple(p.node for p in parts if (p.keep is None or p.per_head) and p.node is not None)
        return MaskMeaning(
            keep=keep,
            bias=bias,
            dropped="inf" if all(fill == float("-inf") for fill in fills) else "finite",
            maybe_empty_rows=empty,
            at_run_time=at_run_time,
            by_head=any(part.per_head and part.masks for part in parts),
            words=_words(keep, bias),
            parts=parts,
            softmax_dtype=dtype,
            prover=self.prover,
        )


def analyse(
    graph: fx.Graph, masks: Sequence[MaskTerm], scores: ScoreShape, softmax_dtype: torch.dtype | None = None
) -> MaskMeaning:
    """:meth:`MaskAnalyser.analyse` for a single site."""
    return MaskAnalyser(graph).analyse(masks, scores, softmax_dtype)


def every_row_keeps_a_key(keep: Predicate, scores: ScoreShape, prover: Prover) -> bool:
    """Whether each query row provably has a key: no upper bound on the key is below a lower one."""
    bounds = keep.key_bounds(size(scores.key))
    if bounds is None:
        return False
    lowest, highest = bounds
    shape = (scores.batch, scores.heads, scores.query, scores.key)
    return all(prover.nonnegative(high - low, shape) for high in highest for low in lowest)


def _decided(formula: Formula, shape: tuple[object, ...], prover: Prover) -> Formula:
    """``formula`` with every comparison decided that is the same for all of the scores."""
    if isinstance(formula, Compare):
        return prover.compare(formula.linear, shape)
    if isinstance(formula, (And, Or)):
        parts = [_decided(part, shape, prover) for part in formula.parts]
        return conjunction(parts) if isinstance(formula, And) else disjunction(parts)
    return formula


def _needs_run_time(parts: Sequence[Part], maybe_empty_rows: bool, dtype: torch.dtype) -> bool:
    """Whether the terms must be summed before it can be said what a row becomes.

    That is so for a float of unknown values, and where a row may have nothing to attend and its masked
    scores differ: -inf next to a finite number, or two finite masks on top of each other.
    """
    if any(part.keep is None for part in parts):
        return True
    fills = {fill for part in parts for fill in part.fills}
    if not maybe_empty_rows or fills <= {float("-inf")}:
        return False
    added = [part for part in parts if part.kind == "add" and part.keep is not None]
    weak = any(part.kind == "add" and not removes(f, dtype) for part in parts for f in part.fills)
    return len(fills) > 1 or weak or (bool(added) and len([p for p in parts if p.fills]) > 1)


def _sizes(scores: ScoreShape) -> tuple[Linear, ...]:
    return tuple(size(n) for n in (scores.batch, scores.heads, scores.query, scores.key))


def _words(keep: Predicate, bias: Sequence[fx.Node]) -> str:
    words = [] if bias and not keep.atoms else [keep.words]
    return ", ".join(words + [f"bias from {origin(node)}" for node in bias])


__all__ = ["MaskAnalyser", "MaskMeaning", "MaskNotExpressible", "analyse"]
