"""`plan`: compile a model of a config at its true size, without weights or a device, and say its cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import TorchDynamoException

from ..errors import AscendFiaError
from ..kernels.composed import COMPOSED
from ..kernels.graph_ops import OPERATORS
from ..kernels.targets import Target
from ..option_kinds import Choice
from ..passes.site import SiteOutcome
from ..passes.values import is_call
from ..report import GraphReport, Report
from .build import unknown_architectures
from .config import load_config
from .cost import Cost, call_cost, program_cost, total
from .depth import Depth, shortened
from .lengths import known_values
from .machines import MACHINES, NO_ESTIMATE, Machine
from .result import Estimate, Plan, SitePlan, StackPlan, StepPlan
from .sizes import sizes_for
from .steps import Step, steps
from .trace import Traced, trace
from .words import layer_span

DTYPES = ("bfloat16", "float16", "float32")


def plan(
    config: Any,
    *,
    target: Target | str = Target.ASCEND910B,
    batch: int = 1,
    prompt: int | None = None,
    cache: int | None = None,
    dtype: torch.dtype | str = "bfloat16",
    every_layer: bool = False,
) -> Plan:
    """Plan the attention of a transformers model on a machine, from its config alone.

    ``config``: the path of a config.json or of its folder, its content as a mapping, or a config object.
    ``batch``: requests at once. ``prompt``: tokens of each (default 4096, or what there are positions for).
    ``cache``: positions of the static cache that a causal model decodes with (default: twice the prompt).
    The model is made of fake tensors: no weights are read, no memory is taken and no kernel runs.
    Of layers that are alike one is compiled, unless ``every_layer``.

    Raises AscendFiaError, which names the argument, its value and the rule it breaks.
    """
    start = time.perf_counter()
    chosen, number_type = _target(target), _dtype(dtype)
    loaded, name = load_config(config)
    depth = shortened(loaded, number_type, reduce=not every_layer)
    sizes, notes = sizes_for(depth.model, batch, prompt, cache)
    machine, no_estimate = _machine(chosen, number_type)
    planned = tuple(_step(step, depth, chosen, machine) for step in steps(depth, sizes))
    return Plan(
        name=name,
        model=type(depth.model).__name__,
        target=chosen.value,
        dtype=str(number_type).removeprefix("torch."),
        batch=sizes.batch,
        prompt=sizes.prompt,
        cache=sizes.cache,
        machine=machine,
        no_estimate=no_estimate,
        stacks=tuple(_stacks(depth, planned)),
        steps=planned,
        notes=(*unknown_architectures(loaded, depth.model), *notes),
        seconds=time.perf_counter() - start,
    )


def _target(target: Target | str) -> Target:
    choice = Choice.of(Target)
    try:
        return Target(choice.accept(target))
    except ValueError as error:
        raise AscendFiaError("target", target, f"{error}; allowed: {choice.allowed}") from None


def _dtype(dtype: torch.dtype | str) -> torch.dtype:
    choice = Choice(DTYPES)
    try:
        found = getattr(torch, choice.accept(str(dtype).removeprefix("torch.")))
    except ValueError as error:
        raise AscendFiaError("dtype", dtype, f"{error}; allowed: {choice.allowed}") from None
    assert isinstance(found, torch.dtype)
    return found


def _machine(target: Target, dtype: torch.dtype) -> tuple[Machine | None, str]:
    """The figures that estimates are made with, or why there are none."""
    if target not in MACHINES:
        return None, NO_ESTIMATE[target]
    if dtype.itemsize != 2:
        return None, "the published peaks are those of 16-bit numbers"
    return MACHINES[target], ""


def _stacks(depth: Depth, steps: tuple[StepPlan, ...]) -> Iterator[StackPlan]:
    paths = [site.module_path for step in steps for site in step.report.sites]
    for stack, planned in zip(depth.full, depth.planned, strict=True):
        kinds: Mapping[int, list[int]] = {kind: [] for kind in stack.kinds}
        for layer, kind in enumerate(stack.kinds):
            kinds[kind].append(layer)
        met = any(stack.index(path) is not None for path in paths)
        yield StackPlan(stack.path, len(stack.layers), planned, tuple(map(tuple, kinds.values())), met)


def _step(step: Step, depth: Depth, target: Target, machine: Machine | None) -> StepPlan:
    try:
        traced = trace(step.run, step.call, depth.mode, target, step.counters())
    except TorchDynamoException as error:
        line = str(getattr(error, "msg", error)).strip().partition("\n")[0]
        rule = f"the {step.name} of {type(depth.model).__name__} can't be traced: {line}"
        raise AscendFiaError("config", depth.config.model_type, rule) from error
    sites: list[SitePlan] = []
    graphs = []
    for number, graph in enumerate(traced):
        outcomes: list[SiteOutcome] = []
        for outcome, program, cost in _costs(graph):
            # In a method, dynamo calls the object that the method is bound to "__self__".
            path = depth.whole_path(outcome.module_path.removeprefix("__self__."))
            site = dataclasses.replace(outcome, module_path=path)
            planned, every = _planned(site, program, cost, depth, machine)
            sites += planned
            outcomes += every
        graphs.append(
            GraphReport(
                name=f"{step.name}/{number}",
                sites=tuple(outcomes),
                target=target.value,
                execution="planned, not run",
                notes=graph.compiled.notes,
            )
        )
    return StepPlan(step.name, step.what, tuple(sites), Report(tuple(graphs)))


def _planned(
    site: SiteOutcome, program: Cost | None, cost: Cost | None, depth: Depth, machine: Machine | None
) -> tuple[list[SitePlan], list[SiteOutcome]]:
    """A site's plan and the outcomes of all layers it stands for; nothing where an earlier layer does."""
    estimate = None if machine is None or cost is None else _estimate(cost, machine)
    found = depth.layers(site.module_path)
    if found is None:
        return [SitePlan(site.module_path or site.name, (), site, program, cost, estimate)], [site]
    stack, layers = found
    if not layers:
        return [], []
    inside = site.module_path.removeprefix(f"{stack.path}.").partition(".")[2]

    def path(layer: object) -> str:
        return ".".join(filter(None, (stack.path, str(layer), inside)))

    every = [dataclasses.replace(site, module_path=path(layer)) for layer in layers]
    return [SitePlan(path(layer_span(layers)), layers, site, program, cost, estimate)], every


def _estimate(cost: Cost, machine: Machine) -> Estimate:
    return Estimate(cost.flops / machine.flops, cost.bytes / machine.bandwidth)


def _costs(graph: Traced) -> Iterator[tuple[SiteOutcome, Cost | None, Cost | None]]:
    """Each outcome with what the program's attention costs and what it costs now, None where unknown."""
    known = known_values(graph.compiled.module, graph.counters) if graph.compiled.traced else {}
    calls = iter(_calls(graph.compiled.module.graph))
    for outcome in graph.compiled.outcomes:
        site = graph.before.get(outcome.name)
        program = None if site is None else program_cost(site)
        if outcome.lowered and site is not None:
            yield outcome, program, total(call_cost(node, site, known) for node in next(calls))
        else:
            yield outcome, program, program


def _calls(graph: fx.Graph) -> list[list[fx.Node]]:
    """The fused calls, a list for each site: its first call says where in the program the site is."""
    sites: list[list[fx.Node]] = []
    for node in graph.nodes:
        if is_call(node, *(getattr(torch.ops.ascend_fia, name) for name in (*OPERATORS, *COMPOSED))):
            if "stack_trace" in node.meta or "nn_module_stack" in node.meta or not sites:
                sites.append([])
            sites[-1].append(node)
    return sites
