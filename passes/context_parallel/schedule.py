"""Starting collectives early: what a collective doesn't depend on runs while it is under way.

The program computes a layer's queries before its keys. Here the keys and values come first, their
all-gathers are started, and the queries are projected and rotated before the first wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from npu_compile.passes.dead_code import has_effect

WAIT = torch.ops._c10d_functional.wait_tensor.default


def start_early(starts: Sequence[fx.Node]) -> None:
    """Move each of ``starts``, and what it needs, ahead of what it doesn't need.

    Only nodes without effects move, and none past a write to memory or a wait. The collectives stay
    in the order given, which must not depend on anything that differs from rank to rank.
    """
    barrier = None
    for start in starts:
        segment = _segment_before(start, barrier)
        needed = _ancestors(start)
        passed = next((node for node in segment if node not in needed), None)
        if passed is not None:
            for node in segment[segment.index(passed) :]:
                if node in needed:
                    passed.prepend(node)
        barrier = start


def overlapped(start: fx.Node) -> list[fx.Node]:
    """The nodes between a collective's start and the first wait for it."""
    between: list[fx.Node] = []
    node = start.next
    while node.op != "output" and not (node.target is WAIT and node.args[0] is start):
        between.append(node)
        node = node.next
    return between


def _segment_before(last: fx.Node, barrier: fx.Node | None) -> list[fx.Node]:
    """The nodes up to ``last`` that may be reordered, behind ``barrier``."""
    segment = [last]
    node = last.prev
    while node is not barrier and node.op in ("call_function", "get_attr") and not _is_barrier(node):
        segment.append(node)
        node = node.prev
    return segment[::-1]


def _is_barrier(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.target is WAIT or has_effect(node) or (schema is not None and bool(schema.is_mutable))


def _ancestors(node: fx.Node) -> set[fx.Node]:
    """``node`` and all it is computed from."""
    found, unread = {node}, [node]
    while unread:
        for source in unread.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                unread.append(source)
    return found
