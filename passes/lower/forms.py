"""The operator calls that a site could become, cheapest first.

Inputs are padded or copied into a form's layout where the site is; what a form that isn't taken leaves
behind has no reader and goes with the dead code.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import AttentionSite, ScoreShape, Views
from npu_compile.passes.specialise import seen_when_tracing
from npu_compile.passes.values import HEADS_FIRST, aten, is_call, same, shape, value

HEAD_DIM_STEP = 16
"""What a device's head dims are multiples of."""

FIA = "npu_fused_infer_attention_score"
FIA_V2 = "npu_fused_infer_attention_score_v2"


@dataclass(frozen=True)
class CallForm:
    """One operator call: tensors and plain arguments by name.

    ``to_bnsd`` are the views from the operator's output to (B, N, Q, D_v). ``late_sink`` is a sink that the
    operator isn't given: it joins afterwards, by the log-sum-exp. ``expanded_from`` is the MLA site whose
    latents key and value are made of, for passes that would rather move latents.
    """

    op: str
    tensors: dict[str, fx.Node]
    plain: dict[str, Any]
    to_bnsd: Views = ()
    notes: tuple[str, ...] = ()
    expanded_from: Any = None
    late_sink: fx.Node | None = field(default=None, kw_only=True)

    def emit(self, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
        """Insert the call; its node, and its result as (B, N, Q, D_v)."""
        tensors = dict(self.tensors)
        inputs = [tensors.pop(name) for name in ("query", "key", "value")]
        graph_operator = getattr(torch.ops.ascend_fia, self.op).default
        fused = call(graph, graph_operator, *inputs, **tensors, **self.plain)
        return fused, through(graph, call(graph, operator.getitem, fused, 0), self.to_bnsd)

    @property
    def input_layout(self) -> str:
        return str(self.plain["input_layout"])

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments: nodes for tensors, plain values for the rest."""
        return {**self.tensors, **self.plain}


@dataclass(frozen=True)
class Operands:
    """A site's query, key and value as (B, N, S, D) nodes."""

    query: fx.Node
    key: fx.Node
    value: fx.Node


def through(graph: fx.Graph, node: fx.Node, views: Views) -> fx.Node:
    """``node`` seen through ``views``, at the insertion point.

    Raises:
        Declined: a view needs a size that no tensor of the graph has.
    """
    try:
        for target, arguments in views:
            node = call(graph, target, node, *arguments)
    except LookupError as error:
        raise Declined(str(error)) from error
    return node


def by_token(node: fx.Node) -> fx.Node:
    """(B, N, S, D) as (B * S, N, D), the packed layout, at the insertion point."""
    node = call(node.graph, aten.transpose.int, node, 1, 2)
    return call(node.graph, aten.reshape.default, node, [-1, *shape(node)[2:]])


def from_tokens(scores: ScoreShape, width: int) -> Views:
    """(B * Q, N, D) seen as (B, N, Q, D)."""
    sizes = [scores.batch, scores.query, scores.heads, width]
    return ((aten.view.default, (sizes,)), *HEADS_FIRST)


def contiguous(node: fx.Node) -> fx.Node:
    """``node``, or a contiguous copy of it at the insertion point."""
    return node if is_contiguous(value(node)) else call(node.graph, aten.contiguous.default, node)


def candidates(
    site: AttentionSite, operands: Operands, masks: MaskArguments, target: Target
) -> Iterator[CallForm]:
    """Forms to try in order. Off the CPU, inputs that are not contiguous in the layout are copied."""
    if target is not Target.CPU:
        operands = _one_head_dim(operands)
    for layout in _layouts(operands, target):
        yield _fia(site, operands, masks, layout, target)


def _one_head_dim(operands: Operands) -> Operands:
    """Query, key and value with the one D that a device demands: filled up with zeros, which add nothing."""
    nodes = (operands.query, operands.key, operands.value)
    widest = max(value(node).shape[-1] for node in nodes)
    wanted = -(-widest // HEAD_DIM_STEP) * HEAD_DIM_STEP
    query, key, value_ = (_filled(node, wanted) for node in nodes)
    return Operands(query, key, value_)


def _filled(node: fx.Node, width: int) -> fx.Node:
    missing = width - value(node).shape[-1]
    return node if missing == 0 else call(node.graph, aten.constant_pad_nd.default, node, [0, missing])


def _layouts(operands: Operands, target: Target) -> list[str]:
    """BNSD, or BSND where that copies less; on the CPU strides don't matter."""
    if target is Target.CPU:
        return ["BNSD"]
    nodes = (operands.query, operands.key, operands.value)
    copied = {
        "BNSD": sum(_weight(value(node)) for node in nodes if not is_contiguous(value(node))),
        "BSND": sum(_weight(value(node)) for node in nodes if not is_contiguous(value(node).transpose(1, 2))),
    }
    return sorted(copied, key=lambda layout: copied[layout])


def _fia(
    site: AttentionSite, operands: Operands, masks: MaskArguments, layout: str, target: Target
) -> CallForm:
    graph = site.output.graph
    to_layout: Views = HEADS_FIRST if layout == "BSND" else ()
    tensors = {}
    for name, node in (("query", operands.query), ("key", operands.key), ("value", operands.value)):
        node = through(graph, node, to_layout)
        tensors[name] = node if target is Target.CPU else contiguous(node)
    tensors |= masks.tensors
    to_bnsd = to_layout
    if layout == "BNSD" and not same(site.scores.query, 1):
        # The result in (B, S, N, D) order is what the output projection reads next.
        layout, to_bnsd = "BNSD_BSND", HEADS_FIRST
    plain = {
        "num_heads": site.scores.heads,
        "num_key_value_heads": site.num_key_value_heads,
        "scale": site.scale,
        "input_layout": layout,
        **masks.plain,
    }
    if target is not Target.CPU:
        tensors |= {
            name: _contiguous_once(tensors[name]) for name in ("atten_mask", "pse_shift") if name in tensors
        }
        if "atten_mask" in tensors and masks.plain["sparse_mode"] < 2 and not same(site.scores.query, 1):
            # Rows that are masked as a whole lose accuracy without this correction.
            plain["inner_precise"] = 2
    notes: tuple[str, ...] = ()
    if value(operands.value).shape[-1] != site.value_head_dim:
        to_bnsd = (*to_bnsd, (aten.slice.Tensor, (3, 0, site.value_head_dim)))
        notes = (f"value filled up from D {site.value_head_dim} to {value(operands.value).shape[-1]}",)
    return CallForm(FIA, tensors, plain, to_bnsd, notes)


def _contiguous_once(node: fx.Node) -> fx.Node:
    """A contiguous copy of a mask or bias that all layers share."""
    if is_contiguous(value(node)):
        return node
    for user in node.users:
        if is_call(user, aten.contiguous.default):
            return user
    with node.graph.inserting_after(node):
        return call(node.graph, aten.contiguous.default, node)


def is_contiguous(fake: torch.Tensor) -> bool:
    """Whether a value is known to be contiguous, without adding a guard."""
    expected: Any = 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if same(size, 1):
            continue
        if not same(stride, expected):
            return False
        expected = expected * size
    return True


def _weight(fake: torch.Tensor) -> int:
    """Elements, with the size that was seen when tracing for each symbolic one."""
    total = 1
    for size in fake.shape:
        total *= seen_when_tracing(size)
    return total
