"""Translate the FlashAttention calls of a graph; report those that stay, and other attention as opaque."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from npu_compile.kernels.targets import Target
from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.flash_calls.band import Band
from npu_compile.passes.flash_calls.forms import fia_form
from npu_compile.passes.flash_calls.new_keys import SCATTER, scatter_arguments
from npu_compile.passes.flash_calls.nodes import Nodes
from npu_compile.passes.flash_calls.schemas import FlashCall, NotTranslated, is_flash_call, read_call
from npu_compile.passes.lower.forms import CallForm
from npu_compile.passes.lower.legality import illegal
from npu_compile.passes.origin import copy_origin
from npu_compile.passes.recognise.where_from import module_path, source
from npu_compile.passes.site import SiteOutcome
from npu_compile.passes.strides import stands_for
from npu_compile.passes.values import Writes, is_call, is_tensor, shape

VENDOR = (
    "npu_fusion_attention",
    "npu_fusion_attention_v2",
    "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2",
    "npu_prompt_flash_attention",
    "npu_incre_flash_attention",
)
"""Attention of torch_npu that a program calls itself, as transformers' "flash_attention_2" does on an NPU."""


def translate_flash_calls(module: fx.GraphModule, target: Target) -> tuple[SiteOutcome, ...]:
    """Rewrite ``module`` in place; one outcome for each call, in program order."""
    graph = module.graph
    nodes = Nodes(module, Writes(graph))
    outcomes: list[SiteOutcome] = []
    for node in list(graph.nodes):
        if is_flash_call(node):
            outcomes.append(_translated(node, nodes, target))
        elif _is_vendor_call(node):
            reason = f"{node.target} is a fused operator already"
            outcomes.append(SiteOutcome(**_place(node, "fused"), reason=reason))
    if outcomes:
        remove_dead_code(graph)
        module.recompile()
    return tuple(outcomes)


def _is_vendor_call(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    namespace, name = node.target._schema.name.split("::")
    return namespace == "npu" and name in VENDOR


def _translated(node: fx.Node, nodes: Nodes, target: Target) -> SiteOutcome:
    nodes.at(node)
    try:
        results = _read_results(node)
        call = read_call(node)
        form = fia_form(call, nodes)
        if (reason := illegal(form, target)) is not None:
            raise NotTranslated(reason)
        if call.k_new is not None:
            arguments = scatter_arguments(call, nodes, target)
            nodes.call(getattr(torch.ops.npu, SCATTER).default, **arguments)
    except NotTranslated as reason:
        return SiteOutcome(**_place(node, "flash"), reason=str(reason))
    outcome = _lowered(node, call, form)
    with node.graph.inserting_before(node):
        fused, result = form.emit(node.graph)
    copy_origin(node, fused, result)
    stands_for(result, results[0])
    for old in results:
        old.replace_all_uses_with(result)
        if old is not node:
            node.graph.erase_node(old)
    node.graph.erase_node(node)
    return outcome


def _read_results(node: fx.Node) -> list[fx.Node]:
    """The nodes that are the call's first result. Raises NotTranslated where others are read."""
    if is_tensor(node):
        return [node]
    users = list(node.users)
    others = [user for user in users if not is_call(user, operator.getitem) or user.args[1] != 0]
    if any(user.users or not is_call(user, operator.getitem) for user in others):
        raise NotTranslated("results beside the output are read, such as the log-sum-exp")
    for user in others:
        node.graph.erase_node(user)
    return [user for user in users if user not in others]


def _place(node: fx.Node, form: str) -> dict[str, Any]:
    where = {"module_path": module_path(node), "source": source(node)}
    return {"name": node.name, "form": form, **where}


def _lowered(node: fx.Node, call: FlashCall, form: CallForm) -> SiteOutcome:
    given = (call.cu_seqlens_q, call.cu_seqlens_k, call.seqused_k)
    lengths = ", ".join(one.name for one in given if one is not None)
    return SiteOutcome(
        **_place(node, "flash"),
        mask=Band.of(call).words,
        op=form.op,
        input_layout=form.input_layout,
        sparse_mode=form.plain["sparse_mode"],
        lengths=f"from {lengths}" if lengths else "",
        num_heads=shape(call.q)[-2],
        num_key_value_heads=form.plain["num_key_value_heads"],
        head_dim=shape(call.q)[-1],
        value_head_dim=shape(call.v)[-1],
        query_len=str(shape(call.q)[-3]),
        cache="static" if call.block_table is not None else "none",
    )
