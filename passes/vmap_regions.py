"""vmap_regions: what a program does under ``torch.vmap``, written out over the dimensions mapped over.

dynamo records vmap as calls that open a level, add and remove a batch dimension, and close the
level. Values inside are functorch's wrappers, which a pre-dispatch trace can't follow: their
results would end up as constants. So each region, from the first level opened to the last closed,
is traced by itself, below functorch, where every operation has its batch dimensions explicit, and
takes the region's place in dynamo's graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

_OPENS, _CLOSES = "_vmap_increment_nesting", "_vmap_decrement_nesting"


def expand_vmap(module: fx.GraphModule, mode: FakeTensorMode) -> fx.GraphModule:
    """``module`` without vmap; ``module`` itself where it has none. Values are traced under ``mode``."""
    if not any(_is(node, _OPENS) for node in module.graph.nodes):
        return module
    # A copy of the graph alone: parameters and buffers stay the very same tensors.
    expanded = fx.GraphModule(module, copy.deepcopy(module.graph))
    expanded.meta = dict(module.meta)
    for region in list(_regions(expanded.graph)):
        _expand(expanded, region, mode)
    expanded.recompile()
    return expanded


def _is(node: fx.Node, name: str) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == name


def _regions(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    region: list[fx.Node] = []
    depth = 0
    for node in graph.nodes:
        depth += _is(node, _OPENS)
        if depth and node.op != "get_attr":
            region.append(node)
        depth -= _is(node, _CLOSES)
        if region and not depth:
            yield region
            region = []


def _expand(module: fx.GraphModule, region: list[fx.Node], mode: FakeTensorMode) -> None:
    inside = set(region)
    inputs = list(dict.fromkeys(one for node in region for one in node.all_input_nodes if one not in inside))
    outputs = [node for node in region if any(user not in inside for user in node.users)]
    for node in inputs:
        if node.op == "get_attr":
            region[0].prepend(node)
    values = [_example_value(module, node, mode) for node in inputs]
    with mode, fx_traceback.preserve_node_meta():
        run = _Region(module, region, inputs, outputs)
        traced = make_fx(run, _allow_non_fake_inputs=True)(*values)
    replaced = _inline(module, traced, inputs, before=region[0])
    for node, new in zip(outputs, replaced, strict=True):
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
    for node in reversed(region):
        module.graph.erase_node(node)


def _example_value(module: fx.GraphModule, node: fx.Node, mode: FakeTensorMode) -> Any:
    """A value like the one that dynamo traced; dynamo's own belongs to another fake mode of its shapes."""
    if node.op == "get_attr":
        found = attrgetter(str(node.target))(module)
    else:
        found = node.meta["val"] if "val" in node.meta else node.meta["example_value"]
    if not isinstance(found, torch.Tensor):
        return found
    with mode:
        return torch.empty_strided(found.size(), found.stride(), dtype=found.dtype, device=found.device)


class _Region(fx.Interpreter):
    """Runs the nodes of a region on values for its inputs; levels left open by an error are closed."""

    def __init__(
        self, module: fx.GraphModule, region: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.region, self.inputs, self.outputs = region, inputs, outputs

    def __call__(self, *values: Any) -> list[Any]:
        self.env = dict(zip(self.inputs, values, strict=True))
        close: list[Callable[[], Any]] = []
        try:
            for node in self.region:
                if _is(node, _OPENS):
                    close.append(torch._C._functorch._vmap_decrement_nesting)
                elif _is(node, _CLOSES):
                    close.pop()
                with self._set_current_node(node):
                    self.env[node] = self.run_node(node)
        finally:
            for function in reversed(close):
                function()
        return [self.env[node] for node in self.outputs]


def _inline(
    module: fx.GraphModule, traced: fx.GraphModule, inputs: list[fx.Node], before: fx.Node
) -> list[fx.Node]:
    """``traced`` written into ``module`` before a node; the nodes (or constants) that it returns."""
    new: dict[fx.Node, Any] = {}
    placeholders = iter(inputs)
    with module.graph.inserting_before(before):
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                new[node] = next(placeholders)
            elif node.op == "output":
                return [new[one] if isinstance(one, fx.Node) else one for one in node.args[0]]
            else:
                new[node] = copied = module.graph.node_copy(node, lambda one: new[one])
                if node.op == "get_attr":
                    copied.target = _keep_constant(module, getattr(traced, str(node.target)))
    raise AssertionError("a traced graph ends in an output")


def _keep_constant(module: fx.GraphModule, constant: Any) -> str:
    taken = vars(module) | module._buffers
    name = f"_vmap_constant{sum(key.startswith('_vmap_constant') for key in taken)}"
    if isinstance(constant, torch.Tensor):
        module.register_buffer(name, constant, persistent=False)
    else:
        setattr(module, name, constant)
    return name
