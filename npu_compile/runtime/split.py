"""Split a lowered graph into what runs on the host before the step and what is captured.

lowered graph ─┬─ length program   inputs → length lists
               ├─ update plan      record, key → length list
               └─ body             inputs, length lists → outputs;   no host work left in it
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from ..kernels.graph_ops import OPERATORS, length_arguments
from ..passes.recognise.where_from import module_path
from .errors import CaptureError
from .int_inputs import IntProgram, lift_ints
from .length_program import LengthProgram, extract, extract_step
from .memory import Memory
from .update_plan import UpdatePlan, UpdateRow

RECORDED = {f"{namespace}::{name}": name for namespace in ("ascend_fia", "npu") for name in OPERATORS}
"""Operators that a captured graph has a record for: the graph-level ones, and torch_npu's, called by hand."""
HOST_LENGTHS = "ascend_fia::host_lengths"


@dataclass(frozen=True)
class Split:
    """``body`` takes the graph's inputs, the int tensors of ``ints``, and a list of ints per record and key.

    ``mutated`` are the positions of the inputs that the body writes to, ``read`` of all that it depends on.
    ``program`` is None where nothing needs lengths; ``step`` is None where its inputs can't be mirrored on
    the host; ``ints`` is None where no int input changes from step to step.
    """

    body: fx.GraphModule
    plan: UpdatePlan
    mutated: tuple[int, ...]
    read: frozenset[int] = frozenset()
    program: LengthProgram | None = None
    step: LengthProgram | None = None
    ints: IntProgram | None = None


def split(gm: fx.GraphModule) -> Split:
    """Split ``gm``; it isn't changed. Raises :class:`CaptureError` where that can't be done."""
    for node in gm.graph.nodes:
        _require_operator(node)
    memory = Memory(gm.graph)
    calls = attention_calls(gm.graph)
    lengths = _length_nodes(calls)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    body, ints = _body(gm, calls)
    return Split(
        body=body,
        plan=_plan(calls, lengths),
        mutated=tuple(index for index, node in enumerate(inputs) if node in memory.writers),
        read=_read(body, len(inputs)),
        program=extract(gm, memory, lengths) if lengths else None,
        step=extract_step(gm, memory, lengths) if lengths else None,
        ints=ints,
    )


def _read(body: fx.GraphModule, inputs: int) -> frozenset[int]:
    """Positions of the first ``inputs`` inputs that have a reader: lengths given on the host have none."""
    placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
    return frozenset(index for index, node in enumerate(placeholders[:inputs]) if node.users)


def attention_calls(graph: fx.Graph) -> list[fx.Node]:
    """The attention calls of ``graph`` that will be records, in order."""
    return [node for node in graph.nodes if _operator(node) is not None]


def _require_operator(node: fx.Node) -> None:
    """Python in a graph runs while the graph is captured, and never again."""
    if node.op in ("call_module", "call_method"):
        raise CaptureError(f"{node.op} {node.target} isn't an operator", node.name)
    if node.op != "call_function" or isinstance(node.target, OpOverload):
        return
    if getattr(node.target, "__module__", None) not in ("_operator", "math", "torch"):
        raise CaptureError(f"{node.target} is a Python function: it would run at capture only", node.name)


def _operator(node: fx.Node) -> str | None:
    """torch_npu's name of the operator that an attention call is, or stands for."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    return RECORDED.get(node.target._schema.name)


def _given(call: fx.Node) -> dict[str, fx.Node]:
    """The length arguments of a graph-level call that are given; a call made by hand keeps its lists."""
    if call.target.namespace == "npu":  # type: ignore[union-attr]
        return {}
    names = length_arguments(_operator(call) or "")
    return {name: call.kwargs[name] for name in names if call.kwargs.get(name) is not None}  # type: ignore[misc]


def _length_nodes(calls: list[fx.Node]) -> list[fx.Node]:
    """The distinct ``host_lengths`` nodes that the calls take their lengths from."""
    found: dict[fx.Node, None] = {}
    for call in calls:
        for key, node in _given(call).items():
            if not _is_host_lengths(node):
                raise CaptureError(f"{key} isn't the result of ascend_fia.host_lengths", call.name)
            found[node] = None
    return list(found)


def _is_host_lengths(node: object) -> bool:
    return (
        isinstance(node, fx.Node)
        and isinstance(node.target, OpOverload)
        and node.target._schema.name == HOST_LENGTHS
    )


def _plan(calls: list[fx.Node], lengths: list[fx.Node]) -> UpdatePlan:
    rows = tuple(
        UpdateRow(
            op=_operator(call) or "",
            node=call.name,
            sources={key: lengths.index(node) for key, node in _given(call).items()},
            module_path=module_path(call),
        )
        for call in calls
    )
    return UpdatePlan(rows, tuple(map(_describe, lengths)))


def _describe(lengths: fx.Node) -> str:
    """A length list in words, by the inputs it is computed from."""
    found, todo = set[fx.Node](), [lengths]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    inputs = sorted(node for node in found if node.op == "placeholder")
    return f"from {', '.join(node.name for node in inputs)}" if inputs else "constant"


def _body(gm: fx.GraphModule, calls: list[fx.Node]) -> tuple[fx.GraphModule, IntProgram | None]:
    """The graph with every attention call made torch_npu's own, its lengths given as inputs."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, values))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    last = inputs[-1] if inputs else None
    for record, call in enumerate(calls):
        name = _operator(call) or ""
        values[call].target = getattr(torch.ops.npu, name).default
        for key in _given(call):
            with graph.inserting_after(last) if last else graph.inserting_before():
                last = graph.placeholder(f"{key}_of_record_{record}")
            values[call].update_kwarg(key, last)
    graph.eliminate_dead_code()
    ints = lift_ints(graph, inputs)
    return fx.GraphModule(gm, graph, "CapturedBody"), ints
