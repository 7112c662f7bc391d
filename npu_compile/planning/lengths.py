"""The sequence lengths of a step, computed: the part of a graph that depends only on known integers.

A graph of fake tensors has no values, but the lengths that the operators are given follow from a few
counters, such as how many tokens a static cache holds. Whatever depends on those alone is computed here
on the CPU, in program order, in-place writes included; everything else stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from ..passes.values import argument, aten, given_arguments, is_call

MOST_ELEMENTS = 1 << 18
"""Larger values than this are not computed: no lengths follow from them."""

NO_VALUE = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided)


def known_values(
    module: fx.GraphModule, inputs: Mapping[fx.Node, torch.Tensor]
) -> dict[fx.Node, torch.Tensor]:
    """The tensors of ``module`` that follow from ``inputs``, by node, on the CPU."""
    known = {node: value.clone() for node, value in inputs.items()}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        result = _computed(node, known)
        if result is not None:
            known[node] = result
        elif _writes(node):
            _forget(node, known)
    return known


def _computed(node: fx.Node, known: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    if not _computable(node) or any(given not in known for given in node.all_input_nodes):
        return None
    if is_call(node, torch.ops.ascend_fia.host_lengths):
        return known[argument(node, 0, "lengths")]
    arguments = fx.map_arg((node.args, node.kwargs), lambda given: known[given])
    args, kwargs = _on_cpu(arguments)
    try:
        result = node.target(*args, **kwargs)  # type: ignore[operator]
    except (NotImplementedError, RuntimeError):
        return None
    return result if isinstance(result, torch.Tensor) else None


def _computable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(node.target, OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or is_call(node, *NO_VALUE):
        return False
    return all(isinstance(size, int) for size in value.shape) and value.numel() <= MOST_ELEMENTS


def _on_cpu(arguments: Any) -> Any:
    """``arguments`` with every device the CPU."""
    if isinstance(arguments, (list, tuple)):
        return [_on_cpu(value) for value in arguments]
    if isinstance(arguments, dict):
        return {name: _on_cpu(value) for name, value in arguments.items()}
    return torch.device("cpu") if isinstance(arguments, torch.device) else arguments


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _forget(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> None:
    """``node`` writes something unknown: what shares memory with what it writes to is unknown now."""
    written = [
        given
        for spec, given in given_arguments(node)
        if spec.alias_info is not None and spec.alias_info.is_write and given in known
    ]
    places = {known[given].untyped_storage().data_ptr() for given in written}
    for other, value in list(known.items()):
        if value.untyped_storage().data_ptr() in places:
            del known[other]
