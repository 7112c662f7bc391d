"""Say which index writes to paged caches stay, and why."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.values import aten, is_call, is_tensor, mutations, storage
from npu_compile.passes.verify import fused_calls

BY_INDEX = (aten.index_copy_, aten.index_put_)


def writes_that_stay(graph: fx.Graph) -> tuple[str, ...]:
    """A note on the index writes to caches that fused calls read by block table; none where there are none.

    npu_scatter_pa_kv_cache takes each slot once. Slots come from block tables, and two rows of a table may
    name one block: so do requests that share a prefix, and rows of padding. To an index -1 is the last row,
    to the scatter nothing.
    """
    caches = {
        storage(cache)
        for fused, _ in fused_calls(graph)
        if fused.kwargs.get("block_table") is not None
        for cache in fused.args[1:3]
        if is_tensor(cache)
    }
    written = [node.name for node, place in mutations(graph) if place in caches and is_call(node, *BY_INDEX)]
    if not written:
        return ()
    reason = "npu_scatter_pa_kv_cache takes each slot once, and nothing proves that these are"
    return (f"{', '.join(written)}: writes to paged caches stay as they are: {reason}",)
