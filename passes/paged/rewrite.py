"""Let fused attention read a paged cache by its block table, where the program gathers it first."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.dead_code import remove_dead_code
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import is_contiguous
from npu_compile.passes.lower.legality import refusal
from npu_compile.passes.paged.gathers import Gathered, NotPaged, gathered
from npu_compile.passes.site import Operand
from npu_compile.passes.values import Writes, aten, shape, value
from npu_compile.passes.verify import fused_calls

LENGTHS = {
    "npu_fused_infer_attention_score": "actual_seq_lengths_kv",
    "npu_fused_infer_attention_score_v2": "actual_seq_kvlen",
}
LAYOUTS = {"BNSD": "BNSD", "BNSD_BSND": "BNSD", "BSND": "BSND"}
"""The layout of keys and values by input_layout."""


def read_in_place(module: fx.GraphModule, target: Target) -> tuple[str, ...]:
    """Rewrite the calls whose keys and values are gathered by block table; one note for each such call.

    Calls that gather otherwise stay as they are, with a note that says why.
    """
    graph, notes = module.graph, []
    writes = Writes(graph)
    for fused, name in list(fused_calls(graph)):
        if fused.kwargs.get("block_table") is not None or fused.kwargs.get("input_layout") not in LAYOUTS:
            continue
        try:
            pair = _pair(fused, writes)
            if pair is not None:
                notes.append(_rewrite(fused, name, *pair, target))
        except NotPaged as reason:
            notes.append(f"{fused.name}: gathered keys and values are copied: {reason}")
    if notes:
        remove_dead_code(graph)
        module.recompile()
    return tuple(notes)


def _pair(fused: fx.Node, writes: Writes) -> tuple[Gathered, Gathered] | None:
    """Keys and values of one block table, unchanged since the program gathered them."""
    layout = LAYOUTS[str(fused.kwargs["input_layout"])]
    key, value_ = (gathered(node, layout) for node in fused.args[1:3])  # type: ignore[arg-type]
    if key is None or value_ is None:
        return None
    if key.table is not value_.table or key.block_size != value_.block_size or key.form != value_.form:
        raise NotPaged("keys and values are gathered by different block tables")
    for read in (key, value_):
        write = writes.between(Operand(read.cache, read.gather), fused)
        if write is not None:
            raise NotPaged(f"the cache is written to ({write.name}) after it is gathered")
        if not is_contiguous(value(read.cache)):
            raise NotPaged("the cache isn't contiguous")
    return key, value_


def _rewrite(fused: fx.Node, name: str, key: Gathered, value_: Gathered, target: Target) -> str:
    graph = fused.graph
    with graph.inserting_before(fused):
        caches = [_blocks(graph, read) for read in (key, value_)]
        table = key.table
        if value(table).dtype != torch.int32:
            table = call(graph, aten._to_copy.default, table, dtype=torch.int32)
        lengths = fused.kwargs.get(LENGTHS[name]) or _all_tokens(graph, key)
        arguments = {
            **fused.kwargs,
            "block_table": table,
            "block_size": key.block_size,
            LENGTHS[name]: lengths,
        }
        _require_legal(name, [fused.args[0], *caches], arguments, target)
        paged = call(graph, fused.target, fused.args[0], *caches, **arguments)  # type: ignore[arg-type]
    paged.meta = {**fused.meta, "val": paged.meta["val"]}
    fused.replace_all_uses_with(paged)
    graph.erase_node(fused)
    return f"{paged.name}: keys and values are read in place, in blocks of {key.block_size}"


def _blocks(graph: fx.Graph, read: Gathered) -> fx.Node:
    """The cache in blocks, as the operator takes it."""
    if read.form == "BnNBsD":
        return read.cache
    width: Any = 1
    for size in shape(read.cache)[1 if read.rows else 2 :]:
        width = width * size
    return call(graph, aten.view.default, read.cache, [-1, read.block_size, width])


def _all_tokens(graph: fx.Graph, key: Gathered) -> fx.Node:
    """Lengths for a call without any: each request has all the tokens gathered for it."""
    batch = shape(key.table)[0]
    full = call(graph, aten.full.default, [batch], key.tokens, dtype=torch.int64, device=torch.device("cpu"))
    return call(graph, torch.ops.ascend_fia.host_lengths.default, full)


def _require_legal(name: str, inputs: list[Any], arguments: dict[str, Any], target: Target) -> None:
    given = {**dict(zip(("query", "key", "value"), inputs, strict=True)), **arguments}
    if (reason := refusal(name, given, target)) is not None:
        raise NotPaged(reason)
