"""One packed call for a loop over the pieces of a sequence.

Vision encoders attend within images, frames or windows: they split queries, keys and values into pieces
of given lengths, attend to each piece by itself and put the results together again. That is one packed
call whose sequences are the pieces.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Literal

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import Operands, through
from npu_compile.passes.lower.legality import illegal
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.outcome import lowered
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.origin import copy_origin
from npu_compile.passes.packed.call import packed_form
from npu_compile.passes.recognise import Recognition
from npu_compile.passes.recognise.assemble import Declined, operand_shape
from npu_compile.passes.site import AttentionSite, Operand, SiteOutcome
from npu_compile.passes.strides import stands_for
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    node_input,
    only_user,
    same,
    same_value_input,
    shape,
    swapped_dims,
)

Layout = Literal["BNSD", "BSND"]


def lower_pieces(
    module: fx.GraphModule, found: Recognition, target: Target
) -> tuple[Recognition, tuple[SiteOutcome, ...]]:
    """Make one packed call of each loop over pieces, where the target takes it.

    Returns the sites that are left to lower, and the outcomes of those that are not: one for each piece.
    """
    sites = {site.output: site for site in found.sites}
    shared = Shared(module.graph, found.around.writes)
    outcomes: list[SiteOutcome] = []
    for node in list(module.graph.nodes):
        group = _pieces(node, sites)
        if group is None or not _alike(group[1], node, found):
            continue
        try:
            made = _packed(node, *group, shared, target)
        except Declined:
            continue
        outcomes += made
        for site in group[1] if made else ():
            del sites[site.output]
    return replace(found, sites=tuple(sites.values())), tuple(outcomes)


def _pieces(cat: fx.Node, sites: dict[fx.Node, AttentionSite]) -> tuple[Layout, list[AttentionSite]] | None:
    """The sites whose results ``cat`` puts together along the queries, and how they are laid out there."""
    if not is_call(cat, aten.cat.default) or len(shape(cat)) != 4:
        return None
    parts = [_origin(part, cat, sites) for part in argument(cat, 0, "tensors")]
    layouts = {part[0] for part in parts if part is not None}
    if len(parts) < 2 or None in parts or len(layouts) != 1:
        return None
    layout = layouts.pop()
    found = [part[1] for part in parts if part is not None]
    axis = argument(cat, 1, "dim", 0) % 4
    if axis != layout.index("S") or len({site.output for site in found}) < len(found):
        return None
    return layout, found


def _origin(
    node: fx.Node, reader: fx.Node, sites: dict[fx.Node, AttentionSite]
) -> tuple[Layout, AttentionSite] | None:
    """The site that ``node`` is the result of, and whether heads and queries have changed places."""
    layout: Layout = "BNSD"
    while only_user(node) is reader and len(shape(node)) == 4:
        if (site := sites.get(node)) is not None:
            return None if site.output_views else (layout, site)
        reader = node
        if (source := same_value_input(node)) is not None:
            node = source
        elif is_call(node, aten.transpose.int) and swapped_dims(node) == {1, 2}:
            node, layout = node_input(node), "BSND" if layout == "BNSD" else "BNSD"
        else:
            return None
    return None


def _alike(sites: list[AttentionSite], cat: fx.Node, found: Recognition) -> bool:
    """Whether the sites differ in their lengths only, and their operands can still be read at ``cat``."""
    first = sites[0]
    for site in sites:
        heads = (site.scores.heads, site.num_key_value_heads, site.head_dim, site.value_head_dim)
        if heads != (first.scores.heads, first.num_key_value_heads, first.head_dim, first.value_head_dim):
            return False
        if (
            site.scale != first.scale
            or site.masks
            or not site.plain_softmax
            or not same(site.scores.batch, 1)
        ):
            return False
        reads = (site.query, site.key, site.value)
        if any(found.around.writes.between(read, cat) is not None for read in reads):
            return False
    return True


def _packed(
    cat: fx.Node, layout: Layout, sites: list[AttentionSite], shared: Shared, target: Target
) -> list[SiteOutcome]:
    """Replace ``cat`` by one call; no outcomes if the target does not take it."""
    graph, first = cat.graph, sites[0]
    queries = shared.ends([site.scores.query for site in sites])
    keys = shared.ends([site.scores.key for site in sites])
    with graph.inserting_before(cat):
        reads = zip(*((site.query, site.key, site.value) for site in sites), strict=True)
        query, key, value_ = (_tokens(graph, list(pieces)) for pieces in reads)
        form = packed_form(first, Operands(query, key, value_), (queries, keys), target)
        if illegal(form, target) is not None:
            return []
        fused, result = form.emit(graph)
        if layout == "BNSD":
            result = call(graph, aten.transpose.int, result, 0, 1)
        result = call(graph, aten.unsqueeze.default, result, 0)
    copy_origin(first.output, fused, result)
    stands_for(result, cat)
    cat.replace_all_uses_with(result)
    note = f"one call for {len(sites)} pieces"
    masks = MaskArguments({}, {}, "all keys of its piece", "one length for each piece")
    return [lowered(replace(site, notes=(*site.notes, note)), form, masks) for site in sites]


def _tokens(graph: fx.Graph, pieces: list[Operand]) -> fx.Node:
    """(T, N, D): the pieces behind each other; what was split for them, if that is so."""
    whole = _whole(pieces)
    if whole is not None:
        return _by_token(graph, whole)
    return call(graph, aten.cat.default, [_by_token(graph, piece) for piece in pieces])


def _by_token(graph: fx.Graph, read: Operand) -> fx.Node:
    """A (1, N, S, D) operand as (S, N, D)."""
    node = call(graph, aten.squeeze.dim, through(graph, read.node, read.views), 0)
    return call(graph, aten.transpose.int, node, 0, 1)


def _whole(pieces: list[Operand]) -> Operand | None:
    """What the pieces are all parts of, in order and without a gap, or None."""
    split = pieces[0].node.args[0] if is_call(pieces[0].node, operator.getitem) else None
    if not is_call(split, aten.split_with_sizes, aten.split, aten.chunk):
        return None
    if len(split.meta["val"]) != len(pieces):
        return None
    for place, piece in enumerate(pieces):
        ours = is_call(piece.node, operator.getitem) and piece.node.args == (split, place)
        if not ours or piece.views != pieces[0].views:
            return None
    whole = replace(pieces[0], node=node_input(split))
    sizes, own = operand_shape(whole), operand_shape(pieces[0])
    return whole if all(same(sizes[axis], own[axis]) for axis in (0, 1, 3)) else None
