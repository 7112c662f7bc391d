"""Integer inputs that a graph uses as values, not as sizes: made tensors, so that they needn't be captured.

A number given to a kernel is baked in at capture. The position of a sliding-window cache of Hugging Face
comes as such a number, another at every step, and would make every step a capture. Where a number only
meets tensors (``arange + position``), a 0-dim tensor says the same and can be written before each replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from ..passes.values import given_arguments


@dataclass(frozen=True)
class IntProgram:
    """Computes, on the host, what the captured graph no longer does: values of int tensors, and int results.

    ``lifted`` are the positions of the inputs that the graph doesn't depend on any more, ``results`` the
    positions of the results that are computed here (None in the graph). ``count`` int tensors follow the
    graph's inputs.
    """

    module: fx.GraphModule
    reads: tuple[int, ...]
    lifted: tuple[int, ...]
    results: tuple[int, ...]
    count: int

    def run(self, args: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]]:
        """The values of the int tensors, and the int results."""
        values = self.module.forward(*[args[i] for i in self.reads])
        return values[: self.count], values[self.count :]


def lift_ints(graph: fx.Graph, inputs: Sequence[fx.Node]) -> IntProgram | None:
    """Rewrite ``graph`` so that no int of ``inputs`` is baked in that needn't be; None where there is none.

    The int tensors become placeholders after ``inputs``.
    """
    lifted = _liftable([node for node in inputs if _is_int(node)])
    if not lifted:
        return None
    output = graph.output_node()
    results = output.args[0] if isinstance(output.args[0], list | tuple) else ()
    values = [node for node in graph.nodes if node in lifted and any(map(_is_operator, node.users))]
    returned = [position for position, node in enumerate(results) if node in lifted]
    wanted = [*values, *[results[i] for i in returned]]
    program, reads = _program(graph, inputs, wanted)
    last = inputs[-1]
    for node in values:
        with graph.inserting_after(last):
            last = graph.placeholder(f"{node.name}_value")
        for user in [user for user in node.users if _is_operator(user)]:
            user.target = _tensor_form(user.target)
            user.replace_input_with(node, last)
    if returned:
        output.args = ([None if node in lifted else node for node in results],)
    graph.eliminate_dead_code()
    positions = tuple(i for i, node in enumerate(inputs) if node in lifted)
    return IntProgram(program, reads, positions, tuple(returned), len(values))


def _liftable(ints: Iterable[fx.Node]) -> set[fx.Node]:
    """The int inputs that are used as values only, and everything computed from them."""
    found: set[fx.Node] = set()
    for node in ints:
        derived = _derived(node)
        if all(
            _takes_tensor(user, value) for value in derived for user in value.users if user not in derived
        ):
            found |= derived
    return found


def _derived(node: fx.Node) -> set[fx.Node]:
    """``node`` and the ints computed from it."""
    found, todo = {node}, [node]
    while todo:
        for user in todo.pop().users:
            if user not in found and _is_int(user) and not _is_operator(user):
                found.add(user)
                todo.append(user)
    return found


def _takes_tensor(user: fx.Node, value: fx.Node) -> bool:
    """Whether ``user`` does with a 0-dim tensor what it does with the int ``value``."""
    if user.op == "output":
        return isinstance(user.args[0], list | tuple)
    if not _is_operator(user):
        return False
    given = list(given_arguments(user, _tensor_form(user.target)))
    if any(_holds(x, value) and (x is not value or str(argument.type) != "Tensor") for argument, x in given):
        return False
    others = [x.meta.get("val") for _, x in given if isinstance(x, fx.Node) and x is not value]
    return any(isinstance(other, torch.Tensor) and _decides_dtype(other) for other in others)


def _decides_dtype(other: torch.Tensor) -> bool:
    """Whether the result of ``other`` and an int64 0-dim tensor has the dtype it has with a Python int."""
    return other.dim() > 0 or other.dtype == torch.int64 or other.dtype.is_floating_point


def _tensor_form(target: Any) -> OpOverload:
    """The overload of an operator that takes a tensor where this one takes a number."""
    if target._overloadname == "Scalar" and "Tensor" in target.overloadpacket.overloads():
        return target.overloadpacket.Tensor
    return target


def _program(
    graph: fx.Graph, inputs: Sequence[fx.Node], wanted: Sequence[fx.Node]
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """A module that computes ``wanted`` from the inputs at the returned positions."""
    needed: set[fx.Node] = set()
    todo = list(wanted)
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo += node.all_input_nodes
    program, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node in needed:
            values[node] = program.node_copy(node, values.__getitem__)
    program.output(tuple(values[node] for node in wanted))
    reads = tuple(i for i, node in enumerate(inputs) if node in needed)
    return fx.GraphModule({}, program, "IntProgram"), reads


def _is_int(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt)


def _is_operator(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload)


def _holds(value: Any, node: fx.Node) -> bool:
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return node in found
