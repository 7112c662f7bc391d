"""What a step's graphs hold before and after the passes, compiled for a target with fake tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..explainer import compile_apart
from ..kernels.targets import Target
from ..passes.normalise import NormaliseError, normalise
from ..passes.recognise import recognise
from ..passes.site import AttentionSite
from ..pipeline import Compiled, run_passes

Call = Callable[..., Any]
Counters = tuple[tuple[torch.Tensor, torch.Tensor], ...]


@dataclass(frozen=True)
class Traced:
    """One graph: its attention sites before lowering, by the name of their output, and what became of it.

    ``counters``: the values that are known of the lowered graph's inputs.
    """

    before: dict[str, AttentionSite]
    compiled: Compiled
    counters: dict[fx.Node, torch.Tensor]


def trace(
    run: Callable[[Call], Any], call: Call, mode: FakeTensorMode, target: Target, counters: Counters
) -> list[Traced]:
    """Compile ``call`` as ``run`` calls it, with fake tensors of ``mode``; its graphs in order.

    ``counters``: pairs of a tensor among the inputs and the int64 tensor that is its value.
    """
    graphs: list[Traced] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Call:
        inputs = [_traced_with(given) for given in example_inputs]
        before = _recognised(gm, inputs)
        compiled = run_passes(gm, inputs, target)
        known = {
            place: value
            for place, given in zip(
                compiled.module.graph.find_nodes(op="placeholder"), example_inputs, strict=True
            )
            for counter, value in counters
            if given is counter
        }
        graphs.append(Traced(before, compiled, known))

        def shapes_only(*args: Any) -> Any:
            with mode:
                return compiled.module.forward(*args)

        return shapes_only

    static = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    with torch.no_grad(), static, warnings.catch_warnings():
        # What dynamo thinks of the model's code is nothing that who plans it can act on.
        warnings.simplefilter("ignore")
        run(compile_apart(call, backend))
    return graphs


def _traced_with(given: Any) -> Any:
    """A fake tensor of the program as one of the mode that the graph is traced with."""
    context = torch._guards.TracingContext.get()
    assert context.fake_mode is not None
    if not isinstance(given, FakeTensor):
        return given
    return context.fake_mode.from_tensor(given, static_shapes=True)


def _recognised(gm: fx.GraphModule, inputs: list[Any]) -> dict[str, AttentionSite]:
    try:
        graph = normalise(gm, inputs).graph
    except NormaliseError:
        return {}
    return {site.output.name: site for site in recognise(graph).sites}
