"""Where K and V live: computed afresh, grown by concatenation, or written into a fixed cache."""

from __future__ import annotations

from typing import Literal

from torch import fx

from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, argument, aten, is_call, is_tensor, storage

CacheKind = Literal["none", "static", "dynamic"]


def cache_kind(key: Operand, writes: Writes, inputs: dict[int, fx.Node]) -> CacheKind:
    """``static``: a graph input that the graph writes to, or takes as it is, such as the keys of an encoder.

    ``dynamic``: an input and new tokens together.
    """
    if storage(key.node) in inputs and (writes.to(key.node) or key.node.op == "placeholder"):
        return "static"
    if is_call(key.node, aten.cat) and any(
        is_tensor(part) and storage(part) in inputs for part in argument(key.node, 0, "tensors")
    ):
        return "dynamic"
    return "none"


def input_storages(graph: fx.Graph) -> dict[int, fx.Node]:
    return {storage(node): node for node in graph.nodes if node.op == "placeholder" and is_tensor(node)}
