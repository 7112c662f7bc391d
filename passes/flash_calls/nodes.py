"""Small nodes that translated calls need; calls of all layers share them while what they read stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from npu_compile.passes.causal_mask_node import causal_mask_node
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import is_contiguous
from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, aten, shape, value


class Nodes:
    """Emits before one call after the other, in program order: see :meth:`at`."""

    def __init__(self, module: fx.GraphModule, writes: Writes) -> None:
        self._module, self._writes = module, writes
        self.graph = module.graph
        self._place: fx.Node | None = None
        self._made: dict[object, tuple[fx.Node, tuple[fx.Node, ...]]] = {}

    def at(self, place: fx.Node) -> None:
        """Emit before ``place`` from now on."""
        self._place = place

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        assert self._place is not None
        with self.graph.inserting_before(self._place):
            return call(self.graph, target, *args, **kwargs)

    def shared(self, key: object, sources: tuple[fx.Node, ...], make: Callable[[], fx.Node]) -> fx.Node:
        """What ``make`` emits, once, until one of ``sources`` is written to."""
        assert self._place is not None
        made = self._made.get(key)
        if made is None or any(self._writes.between(Operand(s, made[0]), self._place) for s in made[1]):
            made = self._made[key] = (make(), sources)
        return made[0]

    def contiguous(self, node: fx.Node) -> fx.Node:
        return node if is_contiguous(value(node)) else self.call(aten.contiguous.default, node)

    def mask(self, device: torch.device) -> fx.Node:
        return self.shared(("mask", device), (), lambda: causal_mask_node(self._module, device))

    def host(self, lengths: fx.Node) -> fx.Node:
        return self.call(torch.ops.ascend_fia.host_lengths.default, lengths)

    def ends(self, cumulative: fx.Node) -> fx.Node:
        """Where each request ends, on the host, from lengths that begin with 0."""
        key = ("ends", cumulative)
        return self.shared(
            key, (cumulative,), lambda: self.host(self.call(aten.slice.Tensor, cumulative, 0, 1))
        )

    def counts(self, cumulative: fx.Node) -> fx.Node:
        """The length of each request, on the host."""

        def make() -> fx.Node:
            return self.host(self.call(aten.diff.default, cumulative))

        return self.shared(("counts", cumulative), (cumulative,), make)

    def used(self, lengths: fx.Node, new: Any) -> fx.Node:
        """``lengths`` and ``new`` more per request, on the host."""

        def make() -> fx.Node:
            return self.host(lengths if new == 0 else self.call(aten.add.Tensor, lengths, new))

        return self.shared(("used", lengths, str(new)), (lengths,), make)

    def equal(self, like: fx.Node, cumulative: bool) -> fx.Node:
        """For ``like`` (B, S, …), S for each of B requests, or where each ends; on the host."""
        batch, count = shape(like)[:2]

        def make() -> fx.Node:
            cpu = torch.device("cpu")
            lengths = self.call(aten.full.default, [batch], count, dtype=torch.int64, device=cpu)
            return self.host(self.call(aten.cumsum.default, lengths, 0) if cumulative else lengths)

        return self.shared(("equal", str(batch), str(count), cumulative), (), make)
