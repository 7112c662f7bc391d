"""The rules of the IR between passes, as code. Tests run them after every pass.

A rule looks at one graph and says what is wrong with it; an empty answer means valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import fx

from npu_compile.kernels.graph_ops import length_arguments
from npu_compile.passes.dead_code import has_effect
from npu_compile.passes.values import is_call, is_tensor, mutations, shape, value

Rule = Callable[[fx.Graph], Iterator[str]]


class InvalidGraph(AssertionError):
    """A pass broke the graph; the message lists every broken rule."""


def verify(graph: fx.Graph) -> None:
    """Raises :class:`InvalidGraph` unless ``graph`` obeys every rule."""
    graph.lint()
    broken = [f"{rule.__name__}: {message}" for rule in RULES for message in rule(graph)]
    if broken:
        raise InvalidGraph("\n".join(broken))


def writes_of(graph: fx.Graph) -> list[str]:
    """The in-place writes of a graph in order; a pass must neither drop, add nor reorder them."""
    return [str(node.target) for node, _ in mutations(graph)]


def every_value_is_known(graph: fx.Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            yield f"{node.name} has no fake value"


def fused_calls(graph: fx.Graph) -> Iterator[tuple[fx.Node, str]]:
    """The calls of our graph-level attention operators, with torch_npu's name of each."""
    for node in graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "") == "ascend_fia":
            name = node.target._schema.name.split("::")[1]
            if name.startswith("npu_"):
                yield node, name


def lengths_come_from_the_host(graph: fx.Graph) -> Iterator[str]:
    """One device-to-host copy serves all layers: no operator reads a device length itself."""
    for node, name in fused_calls(graph):
        for argument in length_arguments(name):
            given = node.kwargs.get(argument)
            if given is not None and not is_call(given, torch.ops.ascend_fia.host_lengths):
                yield f"{node.name}: {argument} is not a host_lengths value"


def masks_fit_their_mode(graph: fx.Graph) -> Iterator[str]:
    for node, _ in fused_calls(graph):
        mode, mask = node.kwargs.get("sparse_mode", 0), node.kwargs.get("atten_mask")
        if mode in (2, 3, 4) and (not is_tensor(mask) or shape(mask)[-2:] != (2048, 2048)):
            yield f"{node.name}: sparse_mode {mode} takes the 2048x2048 mask"
        if is_tensor(mask) and value(mask).dtype not in (torch.bool, torch.int8, torch.uint8):
            yield f"{node.name}: atten_mask is {value(mask).dtype}"


def layout_is_spelled_out(graph: fx.Graph) -> Iterator[str]:
    for node, _ in fused_calls(graph):
        if "input_layout" not in node.kwargs:
            yield f"{node.name}: input_layout is left to its default"


def nothing_is_computed_in_vain(graph: fx.Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "call_function" and not node.users and not has_effect(node):
            yield f"{node.name} has no reader"


RULES: tuple[Rule, ...] = (
    every_value_is_known,
    lengths_come_from_the_host,
    masks_fit_their_mode,
    layout_is_spelled_out,
    nothing_is_computed_in_vain,
)
