"""Norm, rotation and cache write of new latents as one npu_kv_rmsnorm_rope_cache.

The operator's schema doesn't say that it writes to the caches it is given; so its results, which
are the caches, take the place of theirs.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.mla.new_latents import Norm, Rotation, norm_of, rotation_of
from npu_compile.passes.mla.pieces import owner
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.values import (
    argument,
    aten,
    is_call,
    is_tensor,
    same,
    same_shape,
    shape,
    storage,
    value,
)

OPERATOR = "npu_kv_rmsnorm_rope_cache"


@dataclass(frozen=True)
class CacheWrite:
    """The writes of a step's latents and rope parts, both made of ``projected`` (B, S, L + R)."""

    latent: fx.Node
    rope: fx.Node
    projected: fx.Node
    norm: Norm
    rotation: Rotation


def fuse_cache_write(mla: MlaSite, target: Target) -> bool:
    """Replace the two cache writes of a site by the operator; False where that can't be done."""
    found = _match(mla)
    if found is None or not _adjacent(found):
        return False
    graph, place = found.latent.graph, max(found.latent, found.rope)
    with graph.inserting_before(place):
        tensors = _tensors(graph, found)
        plain = {"epsilon": found.norm.epsilon, "cache_mode": "Norm"}
        if check(OPERATOR, {**{n: value(t) for n, t in tensors.items()}, **plain}, target):
            return False
        fused = call(graph, torch.ops.npu.npu_kv_rmsnorm_rope_cache.default, *tensors.values(), **plain)
        rope, latent = (call(graph, operator.getitem, fused, position) for position in (0, 1))
    for write, written in ((found.rope, rope), (found.latent, latent)):
        write.replace_all_uses_with(written)
        graph.erase_node(write)
    return True


def _match(mla: MlaSite) -> CacheWrite | None:
    writes = latent, rope = mla.latent.node, mla.key_rope.node
    if not all(is_call(w, aten.index_copy_) and argument(w, 1, "dim") == 2 for w in writes):
        return None
    if argument(latent, 2, "index") is not argument(rope, 2, "index"):
        return None
    norm, rotation = norm_of(argument(latent, 3, "source")), rotation_of(argument(rope, 3, "source"))
    if norm is None or rotation is None:
        return None
    projected = owner(norm.input)
    fits = owner(rotation.input) is projected and is_tensor(projected) and len(shape(projected)) == 3
    if (
        not fits
        or not _columns(projected, norm.input, 0)
        or not _columns(projected, rotation.input, mla.latent_dim)
    ):
        return None
    if not same(shape(projected)[-1], mla.latent_dim + mla.rope_dim) or not isinstance(
        shape(projected)[0], int
    ):
        return None
    return CacheWrite(latent, rope, projected, norm, rotation)


def _columns(whole: fx.Node, part: fx.Node, start: int) -> bool:
    """Whether ``part`` is columns of (B, S, L + R) from ``start`` on, as (B, S, D) or (B, 1, S, D)."""
    mine, theirs = value(part), value(whole)
    flat = mine.squeeze(1) if mine.dim() == 4 and same(mine.shape[1], 1) else mine
    in_place = flat.dim() == 3 and same(flat.storage_offset() - theirs.storage_offset(), start)
    if not in_place or not same_shape(tuple(flat.shape[:2]), tuple(theirs.shape[:2])):
        return False
    steps = zip(flat.shape, flat.stride(), theirs.stride(), strict=True)
    return all(same(size, 1) or same(a, b) for size, a, b in steps)


def _adjacent(found: CacheWrite) -> bool:
    """Whether nothing uses the cache that is written first before the other is written."""
    first, last = sorted((found.latent, found.rope))
    node = first.next
    while node is not last:
        if any(is_tensor(n) and storage(n) == storage(first) for n in node.all_input_nodes):
            return False
        node = node.next
    return True


def _tensors(graph: fx.Graph, found: CacheWrite) -> dict[str, fx.Node]:
    """The operator's tensors in its order: the rope cache comes before the latent one."""
    kv = call(graph, aten.unsqueeze.default, found.projected, 1)
    batch = shape(kv)[0]
    places = call(graph, aten.unsqueeze.default, argument(found.latent, 2, "index"), 0)
    return {
        "kv": kv,
        "gamma": found.norm.weight,
        "cos": _per_request(graph, found.rotation.cos, batch),
        "sin": _per_request(graph, found.rotation.sin, batch),
        "index": call(graph, aten.repeat.default, places, [batch, 1]),
        "k_cache": argument(found.rope, 0, "self"),
        "ckv_cache": argument(found.latent, 0, "self"),
    }


def _per_request(graph: fx.Graph, half: fx.Node, batch: Any) -> fx.Node:
    """(B, 1, S, R) of the (1 or B, 1, S, R / 2) that each pair is rotated by."""
    full = call(graph, aten.cat.default, [half, half], -1)
    return full if same(shape(full)[0], batch) else call(graph, aten.repeat.default, full, [batch, 1, 1, 1])
