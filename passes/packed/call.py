"""The packed call: tokens of all sequences on one axis, and where each sequence ends."""

from __future__ import annotations

from typing import Any

from torch import fx

from npu_compile.kernels.contract.packed_dims import PACKED_HEAD_DIMS, packs
from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import FIA, CallForm, Operands, contiguous
from npu_compile.passes.site import AttentionSite
from npu_compile.passes.values import aten, value


def packed_form(
    site: AttentionSite, tokens: Operands, lengths: tuple[fx.Node, fx.Node], target: Target
) -> CallForm:
    """A call over ``tokens``, (T, N, D) each, at the insertion point; its output is (T, N, D_v).

    ``lengths`` are the cumulative lengths of queries and of keys on the host. Heads and scale are those of
    ``site``; every query sees all keys of its own sequence. Off the CPU, head dims are filled up with
    zeros, which add nothing, to ones that the operator takes.
    """
    widths = site.head_dim, site.value_head_dim
    if target is not Target.CPU:
        widths = _packed_widths(site) or widths
    tensors = {
        "query": _laid_out(tokens.query, widths[0], target),
        "key": _laid_out(tokens.key, widths[0], target),
        "value": _laid_out(tokens.value, widths[1], target),
        "actual_seq_lengths": lengths[0],
        "actual_seq_lengths_kv": lengths[1],
    }
    plain: dict[str, Any] = {
        "num_heads": site.scores.heads,
        "num_key_value_heads": site.num_key_value_heads,
        "scale": site.scale,
        "input_layout": "TND",
        "sparse_mode": 0,
    }
    if widths[1] == site.value_head_dim:
        return CallForm(FIA, tensors, plain)
    cut = ((aten.slice.Tensor, (2, 0, site.value_head_dim)),)
    return CallForm(FIA, tensors, plain, cut, (f"D filled up from {site.head_dim} to {widths[0]}",))


def _packed_widths(site: AttentionSite) -> tuple[int, int] | None:
    """The smallest head dims of query and value that hold the site's and may be packed."""
    heads, kv_heads = site.scores.heads, site.num_key_value_heads
    fitting = [
        (query, value_)
        for query, value_ in PACKED_HEAD_DIMS["TND"]
        if query >= site.head_dim
        and value_ >= site.value_head_dim
        and packs("TND", query, value_, heads, kv_heads)
    ]
    return min(fitting, default=None)


def _laid_out(node: fx.Node, width: int, target: Target) -> fx.Node:
    if missing := width - value(node).shape[-1]:
        node = call(node.graph, aten.constant_pad_nd.default, node, [0, missing])
    return node if target is Target.CPU else contiguous(node)
