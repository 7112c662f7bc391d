"""`explain`: run a model once through the backend and say what became of its attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import fx

from .backend import compile_graph
from .options import Options, parse
from .report import GraphReport, Report


def explain(
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | Options | None = None,
    quiet: bool = False,
    **kwargs: Any,
) -> Report:
    """Call ``model(*args, **kwargs)`` once, compiled, and report on every attention computation.

    The table is printed unless ``quiet``. The call is real: a KV cache among the arguments is
    written to. What was compiled before stays compiled and :func:`last_report` stays as it was.
    Call it under ``torch.no_grad()``, as a model is called for inference, unless training is
    what is asked about. Raises AscendFiaError for a bad option.
    """
    chosen = options if isinstance(options, Options) else parse(None, options)
    graphs: list[GraphReport] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        run, graph = compile_graph(gm, example_inputs, chosen)
        graphs.append(graph)
        return run

    compile_apart(model, backend)(*args, **kwargs)
    report = Report(tuple(graphs))
    if not quiet:
        report.print()
    return report


def compile_apart(model: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``model`` so that what is compiled goes away with the returned function.

    Dynamo keeps compiled code with the code object it traced; here that is one nobody else has.
    Where a graph break makes it compile the model's own functions, torch (from 2.13) keeps those
    apart too.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    own = FunctionType(call.__code__.replace(), globals(), "explained", None, call.__closure__)
    supported = inspect.signature(torch.compile).parameters
    apart: dict[str, Any] = {"isolate_recompiles": True} if "isolate_recompiles" in supported else {}
    return torch.compile(own, backend=backend, **apart)
