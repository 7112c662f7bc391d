"""Emits an explicit mask whose meaning is proved: from the program's own mask tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import fx

from npu_compile.passes.mask.formula import TRUE
from npu_compile.passes.mask.integers import Integers
from npu_compile.passes.mask.linear import size
from npu_compile.passes.mask.parts import Part
from npu_compile.passes.mask.writer import Writer
from npu_compile.passes.site import ScoreShape
from npu_compile.passes.values import aten, same, shape, value


@dataclass(frozen=True)
class Emitted:
    """Nodes of an explicit mask, which broadcast to (B, N, Q, K), or (B, N, Q, 1) for rows.

    * ``masked``: True where a key has no part; False throughout in ``mean_rows``.
    * ``bias``: what is added to the scores elsewhere.
    * ``mean_rows``: rows that become the mean of the values that ``masked`` leaves.
    * ``void_rows``: rows with nothing but minus infinity.
    """

    masked: fx.Node
    bias: fx.Node | None = None
    mean_rows: fx.Node | None = None
    void_rows: fx.Node | None = None


class MaskTensors:
    """The program's mask tensors as (B or 1, 1, Q or 1, K) nodes, no larger than what they depend on."""

    def __init__(self, writer: Writer, integers: Integers, scores: ScoreShape, device: torch.device) -> None:
        self._writer = writer
        self._integers = integers
        self._scores = scores
        self._device = device

    def masked(self, parts: Sequence[Part]) -> fx.Node:
        """True where any of ``parts`` masks a score; all of them have a known ``keep``."""
        masks = [self._masked(part) for part in parts if part.keep not in (None, TRUE)]
        if not masks:
            return self._writer.call(aten.zeros.default, [1, 1, 1, 1], dtype=torch.bool, device=self._device)
        return reduce(lambda a, b: self._writer.call(aten.logical_or.default, a, b), masks)

    def _masked(self, part: Part) -> fx.Node:
        if part.kind == "causal":
            return self.above_diagonal()
        mask = self.aligned(part)
        if part.kind == "drop":
            return mask
        if part.kind == "keep":
            return self._writer.call(aten.logical_not.default, mask)
        return self._writer.call(aten.lt.Scalar, mask, 0)

    def above_diagonal(self) -> fx.Node:
        """(1, 1, Q, K), True where k > q."""
        call, number = self._writer.call, self._integers.number
        query = call(aten.arange.default, number(size(self._scores.query)), device=self._device)
        key = call(aten.arange.default, number(size(self._scores.key)), device=self._device)
        above = call(aten.gt.Tensor, key, call(aten.unsqueeze.default, query, 1))
        return self._four_dimensional(above, 0)

    def aligned(self, part: Part) -> fx.Node:
        """A part's node with four dimensions, cut down to one index along those it doesn't depend on."""
        assert part.node is not None
        node = self._four_dimensional(part.node, 1 if part.batch_first else 0)
        if part.keep is None:
            return node
        for axis in (-2, -3, -4):
            if axis not in part.axes and not same(shape(node)[axis], 1):
                node = self._writer.call(aten.slice.Tensor, node, axis, 0, 1)
        return node

    def _four_dimensional(self, node: fx.Node, at: int) -> fx.Node:
        while value(node).ndim < 4:
            node = self._writer.call(aten.unsqueeze.default, node, at)
        return node

    def full(self, node: fx.Node) -> fx.Node:
        """``node`` expanded to the query and key lengths."""
        rows, keys = (self._integers.number(size(n)) for n in (self._scores.query, self._scores.key))
        return self._writer.call(aten.expand.default, node, [-1, 1, rows, keys])

    def last_kept(self, masked: fx.Node) -> fx.Node:
        """(B or 1,) int64: the last key that ``masked`` leaves in any row, plus one; 0 if there is none."""
        call = self._writer.call
        nowhere = masked
        for axis in (1, 2):
            if not same(shape(masked)[axis], 1):
                nowhere = call(aten.all.dim, nowhere, axis, True)
        end = self._integers.number(size(self._scores.key) + 1)
        counts = call(aten.arange.start, 1, end, device=value(masked).device)
        last = call(aten.amax.default, call(aten.masked_fill.Scalar, counts, nowhere, 0), [-1])
        return call(aten.reshape.default, last, [-1])


def open_rows(writer: Writer, masked: fx.Node, rows: fx.Node) -> fx.Node:
    """``masked``, with nothing masked in ``rows``."""
    return writer.call(aten.logical_and.default, masked, writer.call(aten.logical_not.default, rows))


def void(writer: Writer, masked: fx.Node) -> fx.Node:
    """Rows in which everything is masked."""
    return writer.call(aten.all.dim, masked, -1, True)
