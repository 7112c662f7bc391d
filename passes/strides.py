"""strides: what takes the place of a result lies in memory as the result did, where that can be told.

A program may view an attention output in ways that only its own strides allow, and hand it out. Operators
write their results in a layout of their own choice, which costs nothing as long as the readers don't depend
on it: most programs copy or reshape right away. A copy is made for the others.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from npu_compile.passes.emit_node import call, fake_mode_of
from npu_compile.passes.specialise import seen_when_tracing
from npu_compile.passes.values import aten, is_call, mutations, same, value

_STANDS_FOR = "stands_for"
_NOT_TOLD = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_KNOWN = ("aten", "prims", "npu", "ascend_fia")
_BY_PLACE = (aten.as_strided, aten.as_strided_copy, aten.as_strided_scatter)
"""Operators that read elements by their places in memory."""


def stands_for(new: fx.Node, old: fx.Node) -> None:
    """Note that ``new`` is about to take the place of ``old``."""
    new.meta[_STANDS_FOR] = old.meta.get(_STANDS_FOR, old.meta["val"])


def keep_strides(module: fx.GraphModule) -> None:
    """Copy the noted results whose strides a reader, or the graph's caller, would miss."""
    graph = module.graph
    written = {place for _, place in mutations(graph)}
    for node in list(graph.nodes):
        traced = node.meta.pop(_STANDS_FOR, None)
        if traced is None or _same_strides(value(node), traced):
            continue
        changed = _changed_values(node, traced, written)
        if changed is None:
            _copy(node, traced)
        else:
            for reader, now in changed.items():
                reader.meta["val"] = now
    module.recompile()


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(same(size, 1) or same(one, other) for size, one, other in pairs)


@dataclass(frozen=True)
class _Value:
    """A node's value when the program was traced, and now."""

    traced: Any
    now: Any

    @property
    def places(self) -> set[int]:
        return _places(self.traced) | _places(self.now)

    def shares(self, result: _Value) -> bool:
        """Whether ``result`` is made of this value as before: a view of it, or a copy."""
        return _share(self.traced, result.traced) == _share(self.now, result.now)


def _changed_values(node: fx.Node, traced: torch.Tensor, written: set[int]) -> dict[fx.Node, Any] | None:
    """The values that readers, and theirs, have now; None if that makes a difference to the program.

    It does where a value can't be computed any more, is handed out, or is a view of what it was a copy of (or
    the other way round) while one of them is ``written`` to.
    """
    changed = {node: _Value(traced, value(node))}
    waiting = set(node.users)
    while waiting:
        reader = min(waiting)
        waiting.remove(reader)
        if not _can_be_told(reader):
            return None
        try:
            result = _Value(reader.meta["val"], _computed(reader, changed))
        except (RuntimeError, ValueError):  # torch raises either for a view that strides do not allow
            return None
        for read in reader.all_input_nodes:
            before = changed.get(read)
            if before is not None and not before.shares(result) and written & (before.places | result.places):
                return None
        if not _alike(result.now, result.traced):
            changed[reader] = result
            waiting.update(reader.users)
    return {reader: result.now for reader, result in changed.items()}


def _can_be_told(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or "val" not in node.meta or is_call(node, *_BY_PLACE):
        return False
    return node.target.namespace in _KNOWN and not any(tag in node.target.tags for tag in _NOT_TOLD)


def _computed(node: fx.Node, changed: dict[fx.Node, _Value]) -> Any:
    args, kwargs = map_arg(
        (node.args, node.kwargs), lambda n: changed[n].now if n in changed else n.meta["val"]
    )
    mode = fake_mode_of(node.graph)
    assert mode is not None and callable(node.target)
    with mode:
        return node.target(*args, **kwargs)


def _alike(now: Any, traced: Any) -> bool:
    pairs = zip(tree_leaves(now), tree_leaves(traced), strict=True)
    return all(_same_strides(a, b) for a, b in pairs if isinstance(a, torch.Tensor))


def _share(a: Any, b: Any) -> bool:
    return bool(_places(a) & _places(b))


def _places(made: Any) -> set[int]:
    tensors = (leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor))
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _copy(node: fx.Node, traced: torch.Tensor) -> None:
    """Have the readers of ``node`` read a copy that lies in memory as ``traced``."""
    strides = [seen_when_tracing(stride) for stride in traced.stride()]
    outermost_first = sorted(range(traced.ndim), key=lambda dim: -strides[dim])
    back = [outermost_first.index(dim) for dim in range(traced.ndim)]
    graph = node.graph
    with graph.inserting_before(node.next):
        moved = call(graph, aten.permute.default, node, outermost_first)
        copy = call(graph, aten.permute.default, call(graph, aten.contiguous.default, moved), back)
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not moved)
