"""recognise: find every attention computation of a normalised graph; change nothing.

* ``sdpa``, ``softmax``, ``flex``, ``opaque``: a matcher for each form that programs write attention in;
  ``leading``: SDPA of more than four dimensions;
* ``product``, ``einsum``: products of activations; ``scores``, ``score_steps``, ``row_maximum``: what happens
  between the first and the softmax; ``probabilities``, ``zeroed``: between the softmax and the second;
  ``late_sink``: a sink behind the second;
* ``arrange``, ``placing``: which axis is batch, heads, queries or keys, and views to (B, N, S, D);
* ``assemble``, ``kv_heads``, ``cache_kind``: from a matcher's parts to a checked site;
* ``attention_like``: what no rule reads and is listed nevertheless; ``where_from``: its place in the program.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from npu_compile.passes.flex.attention import is_flex_attention
from npu_compile.passes.recognise.assemble import Declined, Surroundings, assemble
from npu_compile.passes.recognise.attention_like import is_attention_like
from npu_compile.passes.recognise.flex import match_flex
from npu_compile.passes.recognise.opaque import is_opaque, match_opaque
from npu_compile.passes.recognise.sdpa import is_sdpa, match_sdpa
from npu_compile.passes.recognise.softmax import is_softmax, match_softmax
from npu_compile.passes.recognise.where_from import module_path, source
from npu_compile.passes.site import AttentionSite, Refusal

_MATCHERS = (
    ("sdpa", is_sdpa, match_sdpa),
    ("softmax", is_softmax, match_softmax),
    ("fused", is_opaque, match_opaque),
    ("flex", is_flex_attention, match_flex),
)


@dataclass(frozen=True)
class Recognition:
    """What was found, and the facts about the graph that it was checked against."""

    sites: tuple[AttentionSite, ...]
    refusals: tuple[Refusal, ...]
    around: Surroundings


def recognise(graph: fx.Graph) -> Recognition:
    """The attention sites of ``graph`` in program order, and what looked like one but can't be fused."""
    around = Surroundings(graph)
    sites: list[AttentionSite] = []
    refusals: list[Refusal] = []
    for node in graph.nodes:
        for form, is_anchor, match in _MATCHERS:
            if not is_anchor(node):
                continue
            try:
                parts = match(node)
                if parts is not None:
                    sites.append(assemble(parts, around))
            except Declined as declined:
                if form == "softmax" and not is_attention_like(node, around.writes):
                    continue
                refusals.append(Refusal(node, str(declined), form, module_path(node), source(node)))
    return Recognition(tuple(sites), tuple(refusals), around)
