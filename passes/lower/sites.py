"""The pass.

For each site: the mask's meaning, the operator arguments that say it, the call forms that
could be, the first of them that the target's contract allows. Only then is the site replaced; what was
emitted for other forms goes with the dead code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import CallForm, Operands, candidates, through
from npu_compile.passes.lower.legality import first_legal
from npu_compile.passes.lower.masks import MaskArguments, MaskLowering
from npu_compile.passes.lower.outcome import declined, lowered, refused
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.lower.sinks import joined_by_sink, sink_candidates
from npu_compile.passes.lower.softcap import softcap_form
from npu_compile.passes.origin import copy_origin
from npu_compile.passes.packed.segmented import segmented_form
from npu_compile.passes.recognise import Recognition
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import AttentionSite, SiteOutcome
from npu_compile.passes.strides import stands_for
from npu_compile.passes.values import aten


class Specialist(Protocol):
    """Knows more about some sites, and better calls for them (passes/mla)."""

    def refine(self, site: AttentionSite) -> AttentionSite:
        """``site`` with what is known about it; itself if nothing is."""

    def form(self, site: AttentionSite, masks: MaskArguments) -> tuple[CallForm | None, tuple[str, ...]]:
        """A legal call for a refined site, if any, made at the insertion point; notes on the choice."""

    def finish(self) -> None:
        """Called once, after all sites."""


def lower(
    module: fx.GraphModule, found: Recognition, target: Target, specialist: Specialist | None = None
) -> tuple[SiteOutcome, ...]:
    """Rewrite the sites of ``module`` in place; one outcome a site or refusal, in program order."""
    shared = Shared(module.graph, found.around.writes)
    masks = MaskLowering(module, found.around.writes, shared)
    outcomes: dict[fx.Node, SiteOutcome] = {r.node: refused(r) for r in found.refusals}
    # Last first: a site may read the output of an earlier one, which must still be in the graph then.
    for site in reversed(found.sites):
        outcomes[site.output] = _lower_site(site, masks, shared, target, specialist)
    if specialist is not None:
        specialist.finish()
    ordered = [outcomes[node] for node in sorted(outcomes)]
    remove_dead_code(module.graph)
    module.recompile()
    return tuple(ordered)


def _lower_site(
    site: AttentionSite, masks: MaskLowering, shared: Shared, target: Target, specialist: Specialist | None
) -> SiteOutcome:
    graph = site.output.graph
    arguments = None
    try:
        arguments = masks.arguments(site)
        with graph.inserting_before(site.output):
            form = None
            if specialist is not None and site.plain_softmax:
                site = specialist.refine(site)
                form, notes = specialist.form(site, arguments)
                site = replace(site, notes=(*site.notes, *notes))
            if form is None:
                reads = (site.query, site.key, site.value)
                operands = Operands(*(through(graph, read.node, read.views) for read in reads))
                form, notes = segmented_form(
                    site, operands, arguments.meaning, masks.causal_mask, shared, target
                )
                site = replace(site, notes=(*site.notes, *notes))
                if form is not None:
                    arguments = replace(
                        arguments, lengths="one length for each segment", mean_rows=None, void_rows=None
                    )
                else:
                    operands = _with_mean_rows(operands, arguments)
                    form = _one_call(site, operands, arguments, shared, target)
            _replace(site, form, arguments)
    except Declined as reason:
        return declined(site, str(reason), arguments)
    return lowered(site, form, arguments)


def _one_call(
    site: AttentionSite, operands: Operands, arguments: MaskArguments, shared: Shared, target: Target
) -> CallForm:
    if site.softcap is not None:
        return softcap_form(site, operands, arguments)
    if site.sink is not None:
        return first_legal(sink_candidates(site, operands, arguments, target, shared), target)
    return first_legal(candidates(site, operands, arguments, target), target)


def _with_mean_rows(operands: Operands, arguments: MaskArguments) -> Operands:
    """A query of 0 makes the operator average V, which is what a finite fill gives where no key is left."""
    rows = arguments.mean_rows
    if rows is None:
        return operands
    query = call(rows.graph, aten.masked_fill.Scalar, operands.query, rows, 0)
    return replace(operands, query=query)


def _replace(site: AttentionSite, form: CallForm, arguments: MaskArguments) -> None:
    """Put the call in the place of the site's output."""
    graph = site.output.graph
    fused, result = form.emit(graph)
    if form.expanded_from is not None:
        fused.meta["expanded_from"] = form.expanded_from
    if form.late_sink is not None:
        result = joined_by_sink(graph, fused, result, form.late_sink)
    if arguments.void_rows is not None:
        result = call(graph, aten.masked_fill.Scalar, result, arguments.void_rows, arguments.void)
    if arguments.nan_rows is not None:
        result = call(graph, aten.masked_fill.Scalar, result, arguments.nan_rows, float("nan"))
    result = through(graph, result, site.output_views)
    copy_origin(site.output, fused, result)
    stands_for(result, site.output)
    site.output.replace_all_uses_with(result)
