"""The entry point: ``torch.compile(model, backend="ascend_fia")``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.registry import lookup_backend

from .errors import AscendFiaError
from .kernels.targets import Target
from .options import Options, parse
from .passes.context_parallel.config import with_step
from .passes.mla.options import MlaOptions
from .pipeline import Compiled, run_passes, target_of
from .report import CaptureReport, GraphReport
from .report_log import record, reset
from .runtime import CaptureOptions, capture
from .versions import execution


def ascend_fia(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one dynamo graph: attention becomes Ascend's fused operators, the rest stays.

    Raises:
        AscendFiaError: an unknown mode or option or a bad value; with ``strict``, an attention
            computation that can't be lowered.
    """
    asked = parse(mode, options)
    run, report = compile_graph(module, example_inputs, asked)
    record(report, module, asked)
    if asked.strict and report.left:
        site = report.left[0]
        raise AscendFiaError("options['strict']", True, f"{site.module_path or site.name}: {site.reason}")
    return run


def compile_graph(
    module: fx.GraphModule, example_inputs: Sequence[Any], asked: Options
) -> tuple[Callable[..., Any], GraphReport]:
    """The callable that runs ``module`` as ``asked``, and the report on its attention."""
    target = target_of(example_inputs, asked)
    compiled = _rewritten(module, example_inputs, target, asked)
    where = execution(_device_type(example_inputs))
    run, captured = _callable(compiled, example_inputs, asked)
    report = GraphReport(
        name=_graph_name(),
        sites=compiled.outcomes,
        target=target.value,
        execution=where.where,
        timings=compiled.timings,
        notes=(*where.notes, *compiled.notes),
        capture=captured,
    )
    return run, report


def _rewritten(
    module: fx.GraphModule, example_inputs: Sequence[Any], target: Target, asked: Options
) -> Compiled:
    """What the passes make of ``module``. A fault in them costs the speed, not the program: it is warned of.

    With ``strict``, or over ranks, which must all run the same, the fault is raised.
    """
    mla = MlaOptions(asked.mla, asked.max_context_tokens, asked.mla_fusions)
    try:
        return run_passes(
            module, example_inputs, target, asked.context_parallel, mla, int8_inside=asked.kv_quant == "c8"
        )
    except Exception as fault:
        if asked.strict or asked.context_parallel is not None:
            raise
        note = f"left as it was, by a fault of npu-compile: {type(fault).__name__}: {fault}"
        warnings.warn(f"a graph was {note}", stacklevel=2)
        return Compiled(module, traced=False, notes=(note,))


def _callable(
    compiled: Compiled, example_inputs: Sequence[Any], options: Options
) -> tuple[Callable[..., Any], CaptureReport | None]:
    function: Callable[..., Any] = compiled.module.forward
    report = None
    inputs = [*example_inputs, *(node.meta["val"] for node in compiled.step_inputs)]
    if options.inner_backend != "eager":
        function = lookup_backend(options.inner_backend)(compiled.module, inputs)
    elif options.capture and compiled.traced:
        function = captured = capture(compiled.module, capture_options(options))
        report = CaptureReport(
            tuple(captured.plan.table()), captured.lengths_cost, captured.capture_sizes, captured.refusal
        )
    if compiled.step_inputs and options.context_parallel is not None:
        function = with_step(function, options.context_parallel.steps)
    return function, report


def capture_options(options: Options) -> CaptureOptions:
    return CaptureOptions(
        on_move=options.on_moved_input,
        capture_sizes=options.capture_sizes,
        on_oversize=options.capture_overflow,
    )


def _graph_name() -> str:
    context = torch._guards.CompileContext.try_get()
    return str(context.compile_id) if context is not None and context.compile_id is not None else ""


def _device_type(example_inputs: Sequence[Any]) -> str:
    """What the graph runs on: scalars on the CPU may be among the inputs of any device."""
    types = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)}
    return next((device for device in sorted(types) if device != "cpu"), "cpu")


ascend_fia.reset = reset  # type: ignore[attr-defined]
"""torch.compiler.reset() calls it."""
