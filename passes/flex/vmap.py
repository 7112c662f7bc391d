"""``torch.vmap`` of a function of single elements, in dynamo's graph, written out by broadcasting.

Tensors inside of a vmap hide from the pre-dispatch trace that normalises a graph: it would record their
values as constants. Masks are what models vmap: ``create_block_mask`` and Hugging Face's mask functions
map four times, once for each of batch, head, query and key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.flex.scalar_program import NotScalar, Spread, returned
from npu_compile.passes.values import aten

_ENTER, _LEAVE = "_vmap_increment_nesting", "_vmap_decrement_nesting"
_MAP, _UNMAP = "_add_batch_dim", "_remove_batch_dim"
_SETUP = "lazy_load_decompositions"


@dataclass
class _Region:
    """The nodes of one vmap, with all that are nested in it, in program order.

    What does not depend on a mapped value is computed once and is not part of it.
    """

    nodes: list[fx.Node] = field(default_factory=list)
    mapped: list[fx.Node] = field(default_factory=list)
    body: list[fx.Node] = field(default_factory=list)
    unmapped: list[fx.Node] = field(default_factory=list)

    def require_closed(self) -> None:
        """Raises NotScalar if a value inside, other than the last result, is used outside."""
        inside = set(self.nodes)
        for node in self.nodes:
            if node not in self.unmapped[-1:] and not inside.issuperset(node.users):
                raise NotScalar(f"{node.name} is used outside of its vmap")


def write_out_vmaps(module: fx.GraphModule) -> fx.GraphModule:
    """``module`` with its vmaps of functions of single elements written out; ``module`` itself without any.

    Other vmaps stay as they are.
    """
    if not any(_is(node, _ENTER) for node in module.graph.nodes):
        return module
    copied = fx.Graph()
    copied.output(copied.graph_copy(module.graph, {}))
    # Parameters and buffers stay the very same tensors.
    result = fx.GraphModule(module, copied)
    for region in list(_regions(result.graph)):
        try:
            _write_out(result.graph, region)
        except NotScalar:
            continue
    result.recompile()
    return result


def _is(node: fx.Node, name: str) -> bool:
    """Whether a node calls one of functorch's functions, wherever this version of torch keeps it."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == name


def _regions(graph: fx.Graph) -> Iterator[_Region]:
    depth, region, inside = 0, _Region(), set[fx.Node]()
    for node in graph.nodes:
        depth += _is(node, _ENTER)
        kinds = [name for name in (_ENTER, _LEAVE, _MAP, _UNMAP, _SETUP) if _is(node, name)]
        if not depth or (not kinds and inside.isdisjoint(node.all_input_nodes)):
            continue
        region.nodes.append(node)
        if not kinds:
            region.body.append(node)
        elif kinds == [_MAP]:
            region.mapped.append(node)
        elif kinds == [_UNMAP]:
            region.unmapped.append(node)
        if kinds in ([], [_MAP], [_UNMAP]):
            inside.add(node)
        depth -= _is(node, _LEAVE)
        if not depth:
            yield region
            region = _Region()


def _write_out(graph: fx.Graph, region: _Region) -> None:
    region.require_closed()
    result, sizes = _result(region)
    program, captured = _program(region, result)
    emitted: list[fx.Node] = []

    def emit(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with graph.inserting_before(region.nodes[-1]):
            emitted.append(graph.call_function(target, args, kwargs))
        return emitted[-1]

    try:
        indices = []
        for node in region.mapped:
            source, _, level = _plain(node)
            indices.append(emit(aten.view.default, source, [-1] + [1] * (len(sizes) - level)))
        everywhere = Spread(program, indices, captured, emit).of(returned(program))
        whole = emit(aten.expand.default, everywhere, sizes)
    except NotScalar:
        for node in reversed(emitted):
            graph.erase_node(node)
        raise
    whole.meta = dict(region.unmapped[-1].meta)
    region.unmapped[-1].replace_all_uses_with(whole)
    for node in reversed(region.nodes):
        graph.erase_node(node)


def _result(region: _Region) -> tuple[fx.Node, list[Any]]:
    """What the innermost function returns, and the sizes that it is mapped over, outermost first.

    The result has those dimensions in that order only if each vmap puts its own first.
    """
    sizes: list[Any] = []
    inner = region.unmapped[0].args[0] if region.unmapped else None
    expected: Any = inner
    for node in region.unmapped:
        source, level, size, out_dim = _plain(node)
        if source is not expected or level != len(region.unmapped) - len(sizes) or out_dim != 0:
            raise NotScalar("a vmap returns several tensors, or dimensions in another order")
        expected = node
        sizes.insert(0, size)
    if not isinstance(inner, fx.Node) or inner not in region.body:
        raise NotScalar("a vmap returns nothing that is computed in it")
    return inner, sizes


def _program(region: _Region, result: fx.Node) -> tuple[fx.Graph, list[fx.Node]]:
    """The mapped function as an ATen graph over single elements, and what it captures."""
    inside = set(region.body) | set(region.mapped)
    captured = [n for node in region.body for n in node.all_input_nodes if n not in inside]
    captured = list(dict.fromkeys(captured))
    graph = fx.Graph()
    own: dict[fx.Node, fx.Node] = {}
    for node in (*region.mapped, *captured):
        own[node] = graph.placeholder(node.name)
    for node in region.body:
        own[node] = graph.node_copy(node, own.__getitem__)
    graph.output(own[result])
    if any(node.args[0] in inside for node in region.mapped):
        raise NotScalar("a vmap maps over a value that is computed in another")
    fakes = [_element(*_plain(node)) for node in region.mapped] + [_example(node) for node in captured]
    module = fx.GraphModule(torch.nn.Module(), graph)
    return make_fx(module, pre_dispatch=True)(*fakes).graph, captured


def _plain(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _element(source: Any, dim: Any, _level: Any) -> torch.Tensor:
    example = _example(source)
    if not isinstance(example, torch.Tensor) or example.ndim != 1 or dim != 0:
        raise NotScalar("a vmap maps over a tensor of more than one dimension")
    return example[0]


def _example(node: Any) -> Any:
    """The fake value that dynamo computed for a node."""
    if not isinstance(node, fx.Node) or "example_value" not in node.meta:
        raise NotScalar("a vmap reads a value that dynamo gave no example of")
    return node.meta["example_value"]
