"""The part of a lowered graph that computes sequence lengths, as a program of its own.

The captured graph can't give its lengths to the host, so they are computed before it runs. The program
holds what the lengths depend on, in the graph's order, and writes to copies: the graph's own side effects
happen once, in the captured graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .errors import CaptureError
from .memory import Memory

SMALL = 4096
"""Elements. What the program has to copy or mirror on the host is counters; anything larger isn't one."""


@dataclass(frozen=True)
class LengthProgram:
    """``module(*[inputs[i] for i in reads])`` gives the length tensors, then the new states.

    ``reads`` are positions of graph inputs. ``states`` are those of them that the program returns the
    value of after the whole step for, in order; there are none in a program that gives lengths only.
    """

    module: fx.GraphModule
    reads: tuple[int, ...]
    states: tuple[int, ...] = ()


def extract(gm: fx.GraphModule, memory: Memory, lengths: Sequence[fx.Node]) -> LengthProgram:
    """The program for the values that the ``host_lengths`` nodes ``lengths`` have.

    Raises :class:`CaptureError` where they depend on something that can't be computed ahead of the step:
    an attention call, a random number, or a large tensor that the graph writes to.
    """
    return _build(gm, memory, lengths, states=())


def extract_step(gm: fx.GraphModule, memory: Memory, lengths: Sequence[fx.Node]) -> LengthProgram | None:
    """The same, with the value after the step of every input that the lengths depend on and the graph writes.

    It runs on the host, on mirrors of the inputs. None where an input it would have to mirror isn't a small
    integer tensor.
    """
    reads: set[fx.Node] = {node for node in _needed(memory, lengths, ()) if node.op == "placeholder"}
    while True:
        states = tuple(sorted(node for node in reads if node in memory.writers))
        needed = _needed(memory, lengths, states)
        grown = {node for node in needed if node.op == "placeholder"}
        if grown == reads:
            break
        reads = grown
    if not all(_mirrorable(node) for node in reads):
        return None
    try:
        program = _build(gm, memory, lengths, states)
    except CaptureError:
        return None
    _move_to_host(program.module)
    _fold_constants(program.module)
    return program


def _needed(memory: Memory, lengths: Sequence[fx.Node], states: Sequence[fx.Node]) -> set[fx.Node]:
    """All nodes whose values or writes the lengths, and the states after the step, depend on."""
    found: set[fx.Node] = set()
    todo = list(lengths) + [writer for state in states for writer in memory.writers[state]] + list(states)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
            todo += memory.writers_before(node)
    return found


def _build(
    gm: fx.GraphModule, memory: Memory, lengths: Sequence[fx.Node], states: Sequence[fx.Node]
) -> LengthProgram:
    needed = _needed(memory, lengths, states)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        if node in needed:
            values[node] = graph.placeholder(str(node.target))
            values[node].meta = dict(node.meta)
    for node in sorted(needed, key=memory.position.__getitem__):
        _check(node)
        written = bool(memory.writers.get(node)) and any(w in needed for w in memory.writers[node])
        if node.op != "placeholder":
            copied = graph.node_copy(node, values.__getitem__)
            if node in lengths:
                copied.target, copied.kwargs = torch.ops.aten.clone.default, {}
            values[node] = copied
        if written and node.op in ("placeholder", "get_attr"):
            if not _small(node):
                raise CaptureError("the lengths depend on a large tensor that the graph writes to", node.name)
            values[node] = graph.call_function(torch.ops.aten.clone.default, (values[node],))
            values[node].meta = dict(node.meta)  # its views are the original's
    graph.output(tuple(values[node] for node in (*lengths, *states)))
    return LengthProgram(
        module=fx.GraphModule(gm, graph, "LengthProgram"),
        reads=tuple(index for index, node in enumerate(inputs) if node in needed),
        states=tuple(inputs.index(state) for state in states),
    )


def _check(node: fx.Node) -> None:
    if node.op in ("placeholder", "get_attr"):
        return
    if node.op != "call_function":
        raise CaptureError(f"the lengths depend on a {node.op}, which may have side effects", node.name)
    if not isinstance(node.target, OpOverload):
        return
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        raise CaptureError("the lengths depend on a random number", node.name)
    if "fused_infer_attention" in node.target._schema.name:
        raise CaptureError(
            "the lengths depend on the result of an attention call of the same step", node.name
        )


def _mirrorable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return _small(node) and not value.dtype.is_floating_point
    return isinstance(value, int | torch.SymInt)


def _small(node: fx.Node) -> bool:
    value = node.meta.get("val")
    count = value.numel() if isinstance(value, torch.Tensor) else None
    return isinstance(count, int) and count <= SMALL


def _move_to_host(module: fx.GraphModule) -> None:
    """Make the program compute on CPU tensors: its constants are read here, once."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(module, str(node.target))
            if isinstance(constant, torch.Tensor) and constant.device.type != "cpu":
                setattr(module, str(node.target), constant.cpu())
        node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), _host_device)
    module.recompile()


def _host_device(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _fold_constants(module: fx.GraphModule) -> None:
    """Compute once what depends on no input, such as an arange."""
    constant: set[fx.Node] = set()
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if node.target._schema.is_mutable or not constant.issuperset(node.all_input_nodes):
            continue
        with torch.no_grad():
            values = fx.node.map_arg((node.args, node.kwargs), lambda n: getattr(module, str(n.target)))
            value = node.target(*values[0], **values[1])
        if not isinstance(value, torch.Tensor):
            continue
        name = f"folded_{node.name}"  # a node may be named as a method of modules is, such as `to`
        module.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            folded = graph.get_attr(name)
        folded.meta = {"val": value}
        node.replace_all_uses_with(folded)
        graph.erase_node(node)
        constant.add(folded)
    graph.eliminate_dead_code()
    module.recompile()
