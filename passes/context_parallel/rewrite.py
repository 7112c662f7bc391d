"""The pass: every lowered attention call becomes its context parallel form.

A graph that is run with sharded tokens or a sharded cache computes something else than the model
unless *every* attention in it takes part, so what can't be rewritten is an error and not a note.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.composed import COMPOSED
from npu_compile.kernels.targets import Target
from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.lower.legality import refusal
from npu_compile.passes.site import SiteOutcome

from .collectives import run_on_group
from .config import ContextParallel
from .decode import decode_attention
from .errors import ContextParallelError
from .fia_call import OPERATORS, FiaCall
from .inputs import Inputs, latents_of
from .legality import decode_reason, empty_row_reason, lse_reason, packed_head_dim, prefill_reason
from .prefill import prefill_attention
from .report import COLLECTIVES, collective_uses, describe
from .schedule import start_early
from .splice import splice
from .step_placeholders import StepNodes, add_step_placeholders


@dataclass(frozen=True)
class Rewritten:
    """What :func:`rewrite` did.

    Args:
        inputs: placeholders that were added behind the graph's own, in prefill mode where there is
            attention; at each call they are to be given the values of ``config.steps.named()``.
        notes: sentences on the collectives, for the graph's report.
    """

    inputs: tuple[fx.Node, ...] = ()
    notes: tuple[str, ...] = ()


def rewrite(
    module: fx.GraphModule,
    config: ContextParallel,
    outcomes: Sequence[SiteOutcome] = (),
    target: Target = Target.CPU,
) -> Rewritten:
    """Rewrite ``module`` in place.

    Args:
        outcomes: what became of the graph's attention sites in the lowering.
        target: the machine it was lowered for.

    Raises:
        ContextParallelError: a site was not lowered, a call depends on what one rank can't know, or
            the target takes none of the calls it would become.
    """
    for site in outcomes:
        if not site.lowered:
            raise ContextParallelError(f"{site.module_path or site.name} is not a fused call: {site.reason}")
        if site.op in COMPOSED:
            raise ContextParallelError(
                f"{site.module_path or site.name} is {site.op}, which is not split over ranks"
            )
    graph = module.graph
    calls = [node for node in graph.nodes if node.target in OPERATORS]
    if not calls:
        return Rewritten()
    for node in calls:
        _refuse(node, _reason(_read(node), config) or lse_reason(node) or empty_row_reason(node))
    steps = add_step_placeholders(graph, config.steps) if config.mode == "prefill" else StepNodes()
    collectives: list[fx.Node] = []
    for node in calls:
        replacement = _replacement(graph, node, config, steps.values, target)
        for new in replacement:
            if new.target in OPERATORS:
                _refuse(node, _illegal(_read(new), target))
        _put_in_place(graph, node, replacement[-1])
        started = [new for new in replacement if new.target in COLLECTIVES]
        start_early(started)
        collectives += started
    remove_dead_code(graph)
    graph.lint()
    module.recompile()
    uses = collective_uses(collectives, config.group.ranks, steps.sizes)
    tokens = config.steps.tokens_per_rank if config.mode == "prefill" else ()
    return Rewritten(steps.placeholders, tuple(describe(config.mode, config.group.ranks, uses, tokens)))


def _reason(call: FiaCall, config: ContextParallel) -> str | None:
    if config.mode == "prefill":
        return prefill_reason(call)
    return decode_reason(call, config.group.ranks, config.heads_sharded)


def _illegal(call: FiaCall, target: Target) -> str | None:
    given = {"query": call.query, "key": call.key, "value": call.value, **call.arguments}
    return refusal(call.operator._opname, given, target)


def _refuse(node: fx.Node, reason: str | None) -> None:
    if reason:
        stack = node.meta.get("nn_module_stack")
        where = str(list(stack.values())[-1][0]) if stack else node.name
        raise ContextParallelError(f"{where} can't be split over ranks: {reason}")


def _replacement(
    graph: fx.Graph, node: fx.Node, config: ContextParallel, steps: tuple[fx.Node, ...], target: Target
) -> list[fx.Node]:
    """The nodes of ``node``'s context parallel form, inserted ahead of it; the last is the output."""
    inputs = Inputs(_read(node), latents_of(graph, node) if config.mode == "prefill" else None)
    head_dim = packed_head_dim(inputs.call, target)

    def parallel(*values: Any) -> torch.Tensor:
        call, latents = inputs.given(values)
        if config.mode == "prefill":
            step = config.steps.step(values[len(inputs.nodes) :])
            return run_on_group(prefill_attention(call, step, latents, head_dim), config.group)
        algorithm = decode_attention(call, config.group.ranks, config.heads_sharded)
        return run_on_group(algorithm, config.group)

    return splice(graph, node, parallel, [*inputs.nodes, *steps])


def _put_in_place(graph: fx.Graph, node: fx.Node, output: fx.Node) -> None:
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(output)
        graph.erase_node(user)
    graph.erase_node(node)


def _read(node: fx.Node) -> FiaCall:
    query, key, value = node.args
    return FiaCall(node.target, query, key, value, dict(node.kwargs))
