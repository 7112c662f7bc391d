"""Seeing through ``repeat_kv``: K and V reach the operator with their own head count.

Only a repeat that puts the copies of one head side by side (h0 h0 h1 h1 …) is what the
operators mean by a group; a tiled repeat (h0 h1 h0 h1 …) is another model and is kept.
"""

from __future__ import annotations

from torch import fx

from npu_compile.passes.site import Operand
from npu_compile.passes.values import (
    HEADS_FIRST,
    argument,
    aten,
    is_call,
    is_tensor,
    node_input,
    same,
    same_shape,
    same_value_input,
    seen_through,
    shape,
    shares_storage,
    swapped_dims,
    written_through,
)


def fold_repeated_heads(read: Operand) -> Operand:
    """The (B, N_kv, S, D) operand from before its heads were repeated; ``read`` itself if they weren't."""
    head_dim = 1
    if read.views == HEADS_FIRST:
        head_dim = 2
    elif read.views:
        return read
    found = _fold(read.node, head_dim)
    if found is None:
        return read
    node, head_dim = found
    read_at = read.node if not shares_storage(read.node, node) else read.read_at
    folded = seen_through(Operand(node, read_at))
    return Operand(folded.node, folded.read_at, () if head_dim == 1 else HEADS_FIRST)


def _fold(node: fx.Node, head_dim: int) -> tuple[fx.Node, int] | None:
    """(the node with its own heads, the dimension they are in), or None if nothing was repeated."""
    while (source := same_value_input(node)) is not None:
        node = source
    if written_through(node):
        return None
    if is_call(node, aten.transpose.int) and len(shape(node)) == 4:
        if swapped_dims(node) == {1, 2}:
            return _fold(node_input(node), 3 - head_dim)
        return None
    if is_call(node, aten.repeat_interleave.self_int):
        dim = argument(node, 2, "dim")
        if dim is not None and dim % 4 == head_dim and len(shape(node)) == 4:
            return node_input(node), head_dim
        return None
    return _fold_merged(node, head_dim) or _fold_single_head(node, head_dim)


def _fold_merged(node: fx.Node, head_dim: int) -> tuple[fx.Node, int] | None:
    """reshape(expand(unsqueeze(x, head_dim + 1))): copies of one head side by side."""
    if not is_call(node, aten.reshape, aten.view, aten._unsafe_view, aten.flatten):
        return None
    wide = node_input(node)
    while (source := same_value_input(wide)) is not None:
        wide = source
    if not is_call(wide, aten.expand, aten.broadcast_to, aten.repeat) or len(shape(wide)) != 5:
        return None
    if written_through(wide):
        return None
    narrow = node_input(wide)
    if not is_tensor(narrow) or len(shape(narrow)) != 5 or not same(shape(narrow)[head_dim + 1], 1):
        return None
    merged, repeated = shape(node), shape(wide)
    expected = (*repeated[:head_dim], repeated[head_dim] * repeated[head_dim + 1], *repeated[head_dim + 2 :])
    others = [i for i in range(5) if i != head_dim + 1]
    if not same_shape(merged, expected) or any(not same(shape(narrow)[i], repeated[i]) for i in others):
        return None
    while is_call(narrow, aten.slice.Tensor) and same_value_input(narrow) is not None:
        narrow = node_input(narrow)
    if is_call(narrow, aten.unsqueeze.default) and argument(narrow, 1, "dim") % 5 == head_dim + 1:
        return node_input(narrow), head_dim
    return None


def _fold_single_head(node: fx.Node, head_dim: int) -> tuple[fx.Node, int] | None:
    """One head expanded or repeated over all of them (MQA)."""
    if not is_call(node, aten.expand, aten.broadcast_to, aten.repeat) or len(shape(node)) != 4:
        return None
    source = node_input(node)
    if not is_tensor(source) or len(shape(source)) != 4 or not same(shape(source)[head_dim], 1):
        return None
    if any(not same(shape(source)[i], shape(node)[i]) for i in range(4) if i != head_dim):
        return None
    return source, head_dim
