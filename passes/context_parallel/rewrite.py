"""The pass: every lowered attention call becomes its context parallel form.

A graph that is run with sharded tokens or a sharded cache computes something else than the model
unless *every* attention in it takes part, so what can't be rewritten is an error and not a note.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.site import SiteOutcome

from .collectives import run_on_group
from .config import ContextParallel, StepInputs
from .decode import decode_attention
from .fia_call import OPERATORS, FiaCall
from .legality import decode_reason, prefill_reason
from .prefill import prefill_attention
from .report import COLLECTIVES, collective_uses, describe
from .schedule import start_early
from .splice import splice
from .step_placeholders import StepNodes, add_step_placeholders


class ContextParallelError(RuntimeError):
    """An attention computation that can't take part in context parallel; says which and why."""


@dataclass(frozen=True)
class Rewritten:
    """What :func:`rewrite` did.

    Args:
        inputs: placeholders that were added behind the graph's own; at each call they are to be
            given ``config.steps.values()``. There are some in prefill mode where there is attention.
        notes: sentences on the collectives, for the graph's report.
    """

    inputs: tuple[fx.Node, ...] = ()
    notes: tuple[str, ...] = ()


def rewrite(
    module: fx.GraphModule, config: ContextParallel, outcomes: Sequence[SiteOutcome] = ()
) -> Rewritten:
    """Rewrite ``module`` in place.

    Args:
        outcomes: what became of the graph's attention sites in the lowering.

    Raises:
        ContextParallelError: a site was not lowered, or a call depends on what one rank can't know.
    """
    for site in outcomes:
        if not site.lowered:
            raise ContextParallelError(f"{site.module_path or site.name} is not a fused call: {site.reason}")
    graph = module.graph
    calls = [node for node in graph.nodes if node.target in OPERATORS]
    if not calls:
        return Rewritten()
    for node in calls:
        reason = _reason(_read(node), config)
        if reason:
            raise ContextParallelError(f"{_where(node)} can't be split over ranks: {reason}")
    steps = add_step_placeholders(graph, config.steps) if config.mode == "prefill" else StepNodes()
    for node in calls:
        _replace(graph, node, config, steps.values)
    remove_dead_code(graph)
    graph.lint()
    module.recompile()
    uses = collective_uses(graph, config.group.ranks, steps.sizes)
    tokens = config.steps.tokens_per_rank if config.mode == "prefill" else ()
    return Rewritten(steps.placeholders, tuple(describe(config.mode, config.group.ranks, uses, tokens)))


def _reason(call: FiaCall, config: ContextParallel) -> str | None:
    if config.mode == "prefill":
        return prefill_reason(call)
    return decode_reason(call, config.group.ranks, config.heads_sharded)


def _replace(graph: fx.Graph, node: fx.Node, config: ContextParallel, steps: tuple[fx.Node, ...]) -> None:
    call = _read(node)
    tensors = {"query": call.query, "key": call.key, "value": call.value}
    tensors |= {name: value for name, value in call.arguments.items() if isinstance(value, fx.Node)}
    # A latent is key and value in one; as one input it is gathered once.
    inputs = list(dict.fromkeys(tensors.values()))
    plain = {name: value for name, value in call.arguments.items() if not isinstance(value, fx.Node)}

    def parallel(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(inputs, values, strict=False))
        named = {name: given[source] for name, source in tensors.items()}
        query, key, value = (named.pop(name) for name in ("query", "key", "value"))
        here = FiaCall(call.operator, query, key, value, {**plain, **named})
        if config.mode == "prefill":
            step = StepInputs.unflatten(values[len(inputs) :])
            return run_on_group(prefill_attention(here, step), config.group)
        algorithm = decode_attention(here, config.group.ranks, config.heads_sharded)
        return run_on_group(algorithm, config.group)

    spliced = splice(graph, node, parallel, [*inputs, *steps])
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(spliced[-1])
        graph.erase_node(user)
    graph.erase_node(node)
    start_early([one for one in spliced if one.target in COLLECTIVES])


def _read(node: fx.Node) -> FiaCall:
    query, key, value = node.args
    return FiaCall(node.target, query, key, value, dict(node.kwargs))


def _where(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else node.name
