"""normalise: dynamo's graph → ATen, with attention whole and cache writes in place.

The dynamo graph is traced again with ``make_fx(pre_dispatch=True)`` under dynamo's own fake
mode. Below the pre-dispatch key nothing is decomposed or functionalised, so
``scaled_dot_product_attention``, ``linear``, ``matmul`` and ``softmax`` stay whole and
``index_copy_`` still writes into the cache it was given; functionalising would copy each
static cache once per step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.flex.attention import write_out_flex_attention
from npu_compile.passes.metadata_reads import drop_metadata_reads
from npu_compile.passes.vmap_regions import expand_vmap


class NormaliseError(RuntimeError):
    """The graph can't be traced again; the message says at which operation."""


def normalise(module: fx.GraphModule, example_inputs: Sequence[Any]) -> fx.GraphModule:
    """``module`` traced to ATen: takes and returns the same, node values are in ``node.meta["val"]``.

    Autocast works below this level: its casts are not in the graph, though values have their
    dtypes, and the traced module must run under the autocast state it was traced in.

    Raises:
        NormaliseError: an operation in the graph can't be traced under fake tensors.
    """
    mode = _fake_mode(example_inputs)
    try:
        module = expand_vmap(module, mode)
    except Exception as error:
        raise NormaliseError(f"under vmap: {type(error).__name__}: {error}") from error
    attributes = _tensor_attributes(module)
    fakes = [_fake(mode, value) for value in example_inputs]
    fakes += [mode.from_tensor(tensor, static_shapes=True) for tensor in attributes.values()]
    interpreter = _Retrace(module, list(attributes))
    try:
        with mode, fx_traceback.preserve_node_meta():
            traced = make_fx(interpreter.run_flat, pre_dispatch=True, _allow_non_fake_inputs=True)(*fakes)
    except Exception as error:
        raise NormaliseError(f"{interpreter.where}: {type(error).__name__}: {error}") from error
    _refuse_lost_values(traced)
    _restore_attributes(traced, attributes)
    _name_inputs(traced, module)
    _drop_aliases(traced.graph)
    write_out_flex_attention(traced)
    drop_metadata_reads(traced.graph)
    remove_dead_code(traced.graph)
    traced.recompile()
    return traced


class _Retrace(fx.Interpreter):
    """Runs the dynamo graph with its tensor attributes given as trailing inputs."""

    def __init__(self, module: fx.GraphModule, attributes: list[str]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._attribute_names = attributes
        self._attribute_values: dict[str, Any] = {}
        self._regions: list[torch.autocast] = []
        self.where = "the graph's inputs"

    def run_flat(self, *args: Any) -> Any:
        count = len(args) - len(self._attribute_names)
        self._attribute_values = dict(zip(self._attribute_names, args[count:], strict=True))
        try:
            return self.run(*args[:count])
        finally:
            while self._regions:
                self._regions.pop().__exit__(None, None, None)

    def run_node(self, n: fx.Node) -> Any:
        self.where = f"{n.op} {n.target}"
        if n.op == "get_attr" and n.target in self._attribute_values:
            return self._attribute_values[str(n.target)]
        # Tracing would record the ends of an autocast region without going in; this does both.
        if n.target is _enter_autocast:
            region: Any = n.args
            self._regions.append(torch.autocast(*region))
            self._regions[-1].__enter__()
            return None
        if n.target is _exit_autocast:
            self._regions.pop().__exit__(None, None, None)
            return None
        return super().run_node(n)


def _placeholders(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _fake_mode(example_inputs: Sequence[Any]) -> FakeTensorMode:
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fake_mode is not None:
        return context.fake_mode
    for value in example_inputs:
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    """``value`` under ``mode``, with the symbolic sizes that dynamo gave it."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    context = torch._guards.TracingContext.try_get()
    symbolic = context.tensor_to_context.get(value) if context is not None else None
    if symbolic is None:
        return mode.from_tensor(value, static_shapes=True)
    source = getattr(symbolic, "tensor_source", None)
    return mode.from_tensor(value, static_shapes=False, symbolic_context=symbolic, source=source)


def _tensor_attributes(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr" or node.target in found:
            continue
        value = attrgetter(str(node.target))(module)
        if isinstance(value, torch.Tensor):
            found[str(node.target)] = value
    return found


def _refuse_lost_values(traced: fx.GraphModule) -> None:
    """A fake tensor among the constants is a value whose origin the trace has lost."""
    for node in traced.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(traced, str(node.target), None), FakeTensor):
            raise NormaliseError("a function transform other than vmap hides how a value is computed")


def _restore_attributes(traced: fx.GraphModule, attributes: dict[str, torch.Tensor]) -> None:
    """Turn the trailing inputs that stood for tensor attributes back into attributes."""
    if not attributes:
        return
    for node, (name, tensor) in zip(
        _placeholders(traced)[-len(attributes) :], attributes.items(), strict=True
    ):
        flat = "attribute_" + name.replace(".", "_")
        traced.register_buffer(flat, tensor, persistent=False)
        with traced.graph.inserting_before(node):
            attribute = traced.graph.get_attr(flat)
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
        traced.graph.erase_node(node)


def _name_inputs(traced: fx.GraphModule, module: fx.GraphModule) -> None:
    """Give the inputs the names that dynamo made of the user's: ``attention_mask``, not ``arg3_1``."""
    for node, known in zip(_placeholders(traced), _placeholders(module), strict=True):
        name = re.sub(r"^l_(kwargs_|args_\d+_|self_)?", "", known.name.lower()).strip("_") or known.name
        node._rename(name)
        node.target = node.name


def _drop_aliases(graph: fx.Graph) -> None:
    """``aten.alias`` only renames a value; readers may use the value itself."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.alias.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
