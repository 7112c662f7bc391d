"""What one attention costs: operations and bytes, as the program has it and as the operator does it.

FLOPs are those of the two matrix products, 2 a multiply-add; the softmax is left out. Bytes are the sizes of
what is read and written, each value once, as if the chip kept what it reads more than once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..kernels.layouts import LAYOUTS, Layout, query_sizes, value_head_dim
from ..passes.site import AttentionSite
from ..passes.values import given_arguments, is_call, value
from .attended import attended


@dataclass(frozen=True)
class Cost:
    """FLOPs, and bytes of keys and values read, of masks and biases read, of the query and the result."""

    flops: int
    kv_bytes: int
    mask_bytes: int
    query_bytes: int

    @property
    def bytes(self) -> int:
        return self.kv_bytes + self.mask_bytes + self.query_bytes

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.kv_bytes + other.kv_bytes,
            self.mask_bytes + other.mask_bytes,
            self.query_bytes + other.query_bytes,
        )

    def times(self, count: int) -> Cost:
        return Cost(
            self.flops * count, self.kv_bytes * count, self.mask_bytes * count, self.query_bytes * count
        )


NOTHING = Cost(0, 0, 0, 0)


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, NOTHING)


def program_cost(site: AttentionSite) -> Cost:
    """All queries with all keys, masked or not; keys and values with their own head count.

    A mask counts with the elements it has in memory: a dimension that is only expanded counts as one.
    """
    scores = site.scores
    batch, heads, queries, keys = (
        int(size) for size in (scores.batch, scores.heads, scores.query, scores.key)
    )
    width, item = site.head_dim + site.value_head_dim, value(site.query.node).element_size()
    masks = (value(term.node) for term in site.masks if term.node is not None)
    return Cost(
        2 * batch * heads * queries * keys * width,
        batch * site.num_key_value_heads * keys * width * item,
        sum(map(_stored, masks)),
        batch * heads * queries * width * item,
    )


def _stored(tensor: torch.Tensor) -> int:
    elements = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= int(size) if stride != 0 else 1
    return elements


def call_cost(node: fx.Node, site: AttentionSite, known: dict[fx.Node, torch.Tensor]) -> Cost:
    """One fused call: the keys that its lengths and its sparse mode leave.

    softcap_attention's lengths only mask keys on a device, which reads all of them.
    """
    given: dict[str, Any] = {
        spec.name: spec.default_value if argument is None else argument
        for spec, argument in given_arguments(node)
    }
    if is_call(node, torch.ops.ascend_fia.softcap_attention):
        given["actual_seq_lengths_kv"] = None
    layout = LAYOUTS[str(given["input_layout"])]
    heads = int(given.get("num_heads") or given["num_query_heads"])
    key_heads = int(given.get("num_key_value_heads") or heads)
    query, key, values = (value(given[name]) for name in ("query", "key", "value"))
    sizes = query_sizes(tuple(query.shape), layout, heads)
    batch = int(site.scores.batch)
    queries = int(sizes.seq) // batch if layout.packed else int(sizes.seq)
    ropes = [value(given[name]) for name in ("query_rope", "key_rope") if given.get(name) is not None]
    rope = int(ropes[0].shape[-1]) if ropes else 0
    width = int(sizes.head_dim)
    value_width = int(
        value_head_dim(tuple(values.shape), layout, key_heads, given.get("block_table") is not None)
    )
    # The operator ignores the sparse mode of a single query token.
    mode = int(given["sparse_mode"]) if queries > 1 else 0
    seen = [
        attended(queries, keys, mode, int(given["pre_tokens"]), int(given["next_tokens"]))
        for keys in _key_lengths(given, layout, tuple(key.shape), site, known)
    ]
    stored = width + rope + (0 if given["key"] is given["value"] else value_width)
    masks = (value(given[name]) for name in ("atten_mask", "pse_shift") if given.get(name) is not None)
    return Cost(
        2 * heads * sum(pairs for pairs, _ in seen) * (width + rope + value_width),
        sum(keys for _, keys in seen) * key_heads * stored * key.element_size(),
        sum(map(_stored, masks)),
        batch * queries * heads * (width + rope + value_width) * query.element_size(),
    )


def _key_lengths(
    given: dict[str, Any],
    layout: Layout,
    key: tuple[int, ...],
    site: AttentionSite,
    known: dict[fx.Node, torch.Tensor],
) -> list[int]:
    """The keys of each request: the call's lengths where they are known, otherwise all there are."""
    batch, paged = int(site.scores.batch), given.get("block_table") is not None
    lengths = given.get("actual_seq_lengths_kv") or given.get("actual_seq_kvlen")
    values = known[lengths].tolist() if lengths in known else None
    if values is not None and layout.packed and not paged:
        return [end - start for start, end in zip([0, *values], values, strict=False)]
    if values is not None:
        return values * batch if len(values) == 1 else values
    if paged:
        return [int(site.scores.key)] * batch
    if layout.packed:
        return [int(key[0]) // batch] * batch
    return [int(key[layout.query.index("S")])] * batch
