"""The 2048 x 2048 mask of sparse modes 2 to 4 as a node of a graph."""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.kernels.causal_mask import causal_mask
from npu_compile.passes.emit_node import fake_mode_of

CAUSAL_MASK = "causal_mask_2048"


def causal_mask_node(module: fx.GraphModule, device: torch.device) -> fx.Node:
    """A new read, before all calls, of the buffer that ``module`` keeps the mask of ``device`` in."""
    name = f"{CAUSAL_MASK}_{device.type}"
    mask = causal_mask(device)
    module.register_buffer(name, mask, persistent=False)
    graph = module.graph
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        node = graph.get_attr(name)
    mode = fake_mode_of(graph)
    node.meta["val"] = mask if mode is None else mode.from_tensor(mask, static_shapes=True)
    return node
