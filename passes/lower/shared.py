"""Small nodes that all layers of a graph read, each made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import fx

from npu_compile.passes.mask.integers import Integers
from npu_compile.passes.mask.linear import size
from npu_compile.passes.mask.writer import Writer
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import Dim
from npu_compile.passes.values import Writes, aten


class Shared:
    """Nodes that all layers of a graph read, each made once; they follow what they read."""

    def __init__(self, graph: fx.Graph, writes: Writes) -> None:
        self._writer = Writer(graph, writes)
        self._integers = Integers(self._writer)
        self._made: dict[object, fx.Node] = {}

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self._writer.call(target, *args, **kwargs)

    def once(self, key: object, make: Callable[[], fx.Node]) -> fx.Node:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def number(self, dim: Dim) -> Any:
        """A size as an ``int``, or as a node where it is symbolic.

        Raises:
            Declined: no tensor of the graph has this size.
        """
        try:
            return self._integers.number(size(dim))
        except LookupError as error:
            raise Declined(str(error)) from error

    def compute(self, function: Callable[..., Any], *numbers: Any) -> Any:
        """``function`` of sizes: an ``int`` where all of them are, a node otherwise."""
        if all(isinstance(number, int) for number in numbers):
            return function(*numbers)
        return self.once((function, numbers), lambda: self.call(function, *numbers))

    def host_lengths(self, lengths: fx.Node) -> fx.Node:
        """``lengths`` on the host."""
        target = torch.ops.ascend_fia.host_lengths.default
        return self.once(("host", lengths), lambda: self.call(target, lengths))

    def equal_lengths(self, batch: Dim, length: Dim) -> fx.Node:
        """(B,) int64 on the host: the same length for every request."""

        def make() -> fx.Node:
            sizes = [self.number(batch)], self.number(length)
            return self.call(aten.full.default, *sizes, dtype=torch.int64, device="cpu")

        return self.host_lengths(self.once(("equal", str(batch), str(length)), make))

    def cumulative_lengths(self, batch: Dim, length: Dim) -> fx.Node:
        """(B,) int64 on the host: where each of B packed requests of one length ends."""

        def make() -> fx.Node:
            counts = self.call(
                aten.full.default, [self.number(batch)], self.number(length), dtype=torch.int64, device="cpu"
            )
            return self.call(aten.cumsum.default, counts, 0)

        return self.host_lengths(self.once(("cumulative", str(batch), str(length)), make))

    def ends(self, lengths: Sequence[Dim]) -> fx.Node:
        """(n,) int64 on the host: where each of n packed sequences of these lengths ends."""

        def make() -> fx.Node:
            runs = [list(run) for _, run in groupby(lengths, key=str)]
            counts = [
                self.call(aten.full.default, [len(run)], self.number(run[0]), dtype=torch.int64, device="cpu")
                for run in runs
            ]
            return self.call(aten.cumsum.default, self.call(aten.cat.default, counts), 0)

        return self.host_lengths(self.once(("ends", *map(str, lengths)), make))
