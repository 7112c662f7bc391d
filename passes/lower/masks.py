"""The operator arguments that say what a site's mask means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from npu_compile.passes.causal_mask_node import causal_mask_node
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mask.emit import MaskEmitter
from npu_compile.passes.mask.meaning import MaskAnalyser, MaskMeaning, MaskNotExpressible
from npu_compile.passes.mask.plan import Bound, MaskPlan, plan_mask
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import AttentionSite, MaskTerm, Views
from npu_compile.passes.values import Writes, aten, value


@dataclass(frozen=True)
class MaskArguments:
    """Tensor and plain arguments by name; the mask and the key lengths in words.

    ``mean_rows``: bool, broadcasts to (B, 1, Q, 1), query rows whose result is the mean of V: the
    operator computes it if their query is 0. ``void_rows``: bool, broadcasts to (B, N, Q, 1), rows
    of nothing but -inf whose result is to be ``void``: NaN in a hand-written softmax, and SDPA's 0 where the
    operator can't give it. ``nan_rows``: rows of nothing but -inf that are NaN although ``void`` is the 0 of
    a sink. None where there are no such rows.
    """

    tensors: dict[str, fx.Node]
    plain: dict[str, Any]
    words: str
    lengths: str = ""
    meaning: MaskMeaning | None = None
    mean_rows: fx.Node | None = None
    void_rows: fx.Node | None = None
    void: float = 0.0
    nan_rows: fx.Node | None = None


class MaskLowering:
    """Emits the mask arguments of a graph's sites; what layers share is emitted once."""

    def __init__(self, module: fx.GraphModule, writes: Writes, shared: Shared) -> None:
        self._module = module
        self._analyser = MaskAnalyser(module.graph, writes)
        self._writes = writes
        self._shared = shared
        self._emitters: dict[torch.device, MaskEmitter] = {}

    def arguments(self, site: AttentionSite) -> MaskArguments:
        """The arguments for ``site``; their nodes are in the graph afterwards.

        Raises:
            Declined: the operator has no way to say this mask.
        """
        try:
            masks = [self._seen(mask) for mask in site.masks]
            meaning = self._analyser.analyse(masks, site.scores, site.softmax_dtype)
        except MaskNotExpressible as error:
            raise Declined(str(error)) from error
        if site.zero_if_empty and sum(part.masks for part in meaning.parts) > 1:
            raise Declined("the attention probabilities are set to 0 where one of several masks is")
        zeros = site.zero_if_empty or site.sink is not None
        plan = plan_mask(meaning, site.scores, zero_if_empty=zeros)
        device = value(site.query.node).device
        emitter = self._emitters.setdefault(device, MaskEmitter(self._analyser, device))
        tensors: dict[str, fx.Node] = {}
        if plan.atten_mask == "causal":
            tensors["atten_mask"] = self.causal_mask(device)
        elif (mask := emitter.emit_mask(plan)) is not None:
            tensors["atten_mask"] = mask
        if (bias := emitter.emit_bias(plan)) is not None:
            tensors["pse_shift"] = emitter.expand_bias(bias, site.scores)
        if (lengths := emitter.emit_lengths(plan)) is not None:
            tensors["actual_seq_lengths_kv"] = self._shared.host_lengths(lengths)
        plain: dict[str, Any] = {"sparse_mode": plan.sparse_mode}
        if plan.sparse_mode == 4:
            plain |= {"pre_tokens": plan.pre_tokens, "next_tokens": plan.next_tokens}
        rows = self._zero_rows(emitter, plan, site) if zeros else _rows(emitter, plan, site)
        return MaskArguments(tensors, plain, plan.words, _lengths_in_words(plan), meaning, **rows)

    def _seen(self, mask: MaskTerm) -> MaskTerm:
        """``mask`` as a node of its own where views lie between it and the scores.

        Raises:
            MaskNotExpressible: its node is written to after it was made.
        """
        if mask.node is None or not mask.views:
            return mask
        node, views = mask.node, mask.views
        if any(write > node for write in self._writes.to(node)):
            raise MaskNotExpressible(f"the mask {node.name} is written to in place before it is read")
        seen = self._shared.once(("seen", node, str(views)), lambda: self._through(node, views))
        return replace(mask, node=seen, views=())

    def _through(self, node: fx.Node, views: Views) -> fx.Node:
        try:
            for target, arguments in views:
                node = self._shared.call(target, node, *arguments)
        except LookupError as error:
            raise Declined(str(error)) from error
        return node

    def _zero_rows(self, emitter: MaskEmitter, plan: MaskPlan, site: AttentionSite) -> dict[str, Any]:
        """Rows with nothing to attend, which are to be 0 and not the mean of V: a sink takes all of them."""
        rows = emitter.emit_empty_rows(plan)
        if plan.patch_void_rows:
            rows = self._either(rows, emitter.emit_void_rows(plan))
        nan = emitter.emit_void_rows(plan) if site.nan_if_void and _may_be_void(plan.meaning) else None
        return {"void_rows": rows, "nan_rows": nan}

    def _either(self, a: fx.Node | None, b: fx.Node | None) -> fx.Node | None:
        if a is None or b is None:
            return a or b
        return self._shared.once(("either", a, b), lambda: self._shared.call(aten.logical_or.default, a, b))

    def causal_mask(self, device: torch.device) -> fx.Node:
        """The 2048 x 2048 triangle that modes 2 to 4 take, one per device."""
        return self._shared.once(("causal", device), lambda: causal_mask_node(self._module, device))


def _may_be_void(meaning: MaskMeaning) -> bool:
    """Whether a row may hold nothing but -inf; one that is masked with finite numbers holds these."""
    return meaning.dropped == "inf" or meaning.at_run_time or meaning.by_head


def _rows(emitter: MaskEmitter, plan: MaskPlan, site: AttentionSite) -> dict[str, Any]:
    """The rows that the operator doesn't compute as the program does."""
    hand_written = site.form == "softmax"
    return {
        "mean_rows": emitter.emit_empty_rows(plan),
        "void_rows": emitter.emit_void_rows(plan) if hand_written or plan.patch_void_rows else None,
        "void": float("nan") if hand_written else 0.0,
    }


def _lengths_in_words(plan: MaskPlan) -> str:
    if plan.lengths is None:
        return ""
    if isinstance(plan.lengths, Bound):
        return "keys: " + ", ".join(str(limit) for limit in plan.lengths.limits)
    return "keys: up to the last one kept"
