"""share lengths: layers that read the same lengths share one copy of them to the host.

A program that calls the graph-level operators itself copies the lengths once per layer; each copy from
a device is a synchronisation.
"""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.passes.values import Writes, is_call, operand


def share_lengths(graph: fx.Graph) -> int:
    """Let equal ``host_lengths`` calls be one; how many are gone.

    Two are equal if nothing is written to what they read between the first and the second.
    """
    writes = Writes(graph)
    first: dict[fx.Node, fx.Node] = {}
    gone = 0
    for node in list(graph.nodes):
        if not is_call(node, torch.ops.ascend_fia.host_lengths):
            continue
        lengths = node.args[0]
        kept = first.get(lengths)
        if kept is None or writes.between(operand(lengths, kept), node) is not None:
            first[lengths] = node
            continue
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
        gone += 1
    return gone
