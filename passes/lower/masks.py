"""The operator arguments that say what a site's mask means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx

from npu_compile.kernels.causal_mask import causal_mask
from npu_compile.passes.emit_node import call
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import AttentionSite
from npu_compile.passes.values import aten, shape, value

CAUSAL_MASK = "causal_mask_2048"


@dataclass(frozen=True)
class MaskArguments:
    """Tensor and plain arguments by name, the mask and the lengths in words.

    ``empty_rows`` is True, (B, 1, Q, 1), at query rows that see no key, where the program gives
    ``empty_value`` and the operator 0; None where the operator's 0 is right.
    """

    tensors: dict[str, fx.Node]
    plain: dict[str, Any]
    words: str
    lengths: str = ""
    empty_rows: fx.Node | None = None
    empty_value: Literal["mean", "nan"] = "mean"


class MaskLowering:
    """Emits the mask arguments of a graph's sites; what layers share is emitted once."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._graph = module.graph

    def arguments(self, site: AttentionSite) -> MaskArguments:
        tensors: dict[str, fx.Node] = {}
        plain: dict[str, Any] = {"sparse_mode": 0}
        with self._graph.inserting_before(site.output):
            for term in site.masks:
                if term.kind == "causal":
                    plain["sparse_mode"] = 2
                    tensors["atten_mask"] = self._causal(site)
                elif term.kind == "add":
                    sizes = [site.scores.batch, site.scores.heads, site.scores.query, site.scores.key]
                    tensors["pse_shift"] = call(self._graph, aten.expand.default, term.node, sizes)
                else:
                    mask = term.node
                    if term.kind == "keep":
                        mask = call(self._graph, aten.logical_not.default, mask)
                    sizes = [site.scores.batch, 1, site.scores.query, site.scores.key]
                    tensors["atten_mask"] = call(self._graph, aten.expand.default, mask, sizes)
                    plain["sparse_mode"] = 1
        return MaskArguments(tensors, plain, ", ".join(t.kind for t in site.masks))

    def _causal(self, site: AttentionSite) -> fx.Node:
        if not hasattr(self._module, CAUSAL_MASK):
            fake = value(site.query.node)
            self._module.register_buffer(CAUSAL_MASK, causal_mask(fake.device), persistent=False)
        node = self._graph.get_attr(CAUSAL_MASK)
        node.meta["val"] = value(site.query.node).fake_mode.from_tensor(getattr(self._module, CAUSAL_MASK))
        return node
