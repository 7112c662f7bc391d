"""The absorbed form: attention over the latents themselves, one key/value head for all query heads.

    score = (q_nope @ W_UK[n]) . latent + q_rope . key_rope        out = (p @ latent) @ W_UV[n]^T

which is q_nope . (W_UK[n] latent) + ... and p @ (latent W_UV[n]^T) in another order. The scale
stays that of the program's own query width, nope + rope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.emit_node import call
from npu_compile.passes.lower.forms import FIA_V2, CallForm, contiguous
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mla.emit import emit, queries
from npu_compile.passes.mla.kept_keys import gathered, kept_first
from npu_compile.passes.mla.key_bias import shared_bias, with_bias
from npu_compile.passes.mla.pages import block_size, block_table, in_blocks
from npu_compile.passes.mla.products import latent_query, to_values
from npu_compile.passes.mla.site import MlaSite
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.site import ScoreShape, Views
from npu_compile.passes.values import aten, same, shape, value

MOST_HEADS = 128


@dataclass(frozen=True)
class Latents:
    """``latent`` (B, 1, K, L) and ``rope`` (B, 1, K, R), and the arguments that say which of them count."""

    latent: fx.Node
    rope: fx.Node
    tensors: dict[str, fx.Node]
    plain: dict[str, Any]


def absorbed(mla: MlaSite, masks: MaskArguments, target: Target, shared: Shared, fuse: bool) -> CallForm:
    """FIA v2 over the latents, W_UK before it and W_UV behind it.

    ``fuse``: the product with W_UV is npu_transpose_batchmatmul where that is legal.

    Raises:
        Declined: mask or bias can't be said beside latents of one head.
    """
    graph, scores = mla.attention.output.graph, mla.attention.scores
    bias = shared_bias(graph, mla, masks, target)
    nope, rope = queries(graph, mla, masks.mean_rows)
    key_rope = emit(graph, mla.key_rope)
    if bias is not None:
        rope, key_rope = with_bias(graph, shared, mla, bias, rope, key_rope)
    latents = _latents(graph, mla, masks, shared, key_rope)
    query = latent_query(graph, shared, mla, nope)
    heads = scores.heads if target is Target.CPU else _legal_heads(scores.heads)
    tensors = {
        "query": _with_heads(graph, query, heads),
        "key": latents.latent,
        "value": latents.latent,
        "query_rope": _with_heads(graph, rope, heads),
        "key_rope": latents.rope,
        **latents.tensors,
    }
    plain = {
        "num_query_heads": heads,
        "num_key_value_heads": 1,
        "softmax_scale": mla.attention.scale,
        "input_layout": "BNSD_NBSD",
        **latents.plain,
    }
    if target is not Target.CPU:
        plain["block_size"] = block_size(shape(latents.latent)[2])
        tensors |= _paged(graph, shared, scores, latents, plain["block_size"])
        tensors |= {name: contiguous(tensors[name]) for name in ("query", "query_rope")}
    notes = () if heads == scores.heads else (f"{scores.heads} heads padded to {heads}",)
    own: Views = () if heads == scores.heads else ((aten.slice.Tensor, (0, 0, scores.heads)),)
    return CallForm(FIA_V2, tensors, plain, own + to_values(graph, shared, mla, target, fuse), notes)


def _latents(graph: fx.Graph, mla: MlaSite, masks: MaskArguments, shared: Shared, rope: fx.Node) -> Latents:
    """The latents with the mask in the modes that they go with: lengths; 3 or 4 for several tokens."""
    latent, scores = emit(graph, mla.latent), mla.attention.scores
    lengths = masks.tensors.get("actual_seq_lengths_kv")
    mask, mode = masks.tensors.get("atten_mask"), masks.plain["sparse_mode"]
    tensors = {} if lengths is None else {"actual_seq_kvlen": lengths}
    one_token = same(scores.query, 1)
    if mask is None or (mode == 3 and one_token):
        return Latents(latent, rope, tensors, {"sparse_mode": 0})
    if mode in (0, 1):
        if not one_token:
            raise Declined("attention over latents takes no explicit mask for several query tokens")
        indices, kept = kept_first(shared, mask, scores.batch, scores.key)
        latent, rope = (gathered(graph, shared, node, indices, scores.key) for node in (latent, rope))
        return Latents(latent, rope, {"actual_seq_kvlen": kept}, {"sparse_mode": 0})
    if mode == 2:
        if lengths is not None or not same(scores.query, scores.key):
            raise Declined("attention over latents takes no mask that is aligned at the top left")
        mode = 3
    band: dict[str, Any] = {
        name: masks.plain[name] for name in ("pre_tokens", "next_tokens") if name in masks.plain
    }
    return Latents(latent, rope, {**tensors, "atten_mask": mask}, {"sparse_mode": mode, **band})


def _paged(
    graph: fx.Graph, shared: Shared, scores: ScoreShape, latents: Latents, block: int
) -> dict[str, fx.Node]:
    """The latents in blocks, their block table and the lengths that paging demands."""
    blocks, device = in_blocks(graph, shared, latents.latent, block), value(latents.latent).device
    lengths = latents.tensors.get("actual_seq_kvlen")
    return {
        "key": blocks,
        "value": blocks,
        "key_rope": in_blocks(graph, shared, latents.rope, block),
        "block_table": block_table(shared, device, scores.batch, scores.key, block),
        "actual_seq_kvlen": lengths or shared.equal_lengths(scores.batch, scores.key),
    }


def _legal_heads(heads: int) -> int:
    """The next head count that the operator takes, a power of two."""
    return 1 << (heads - 1).bit_length() if heads <= MOST_HEADS else heads


def _with_heads(graph: fx.Graph, query: fx.Node, heads: int) -> fx.Node:
    missing = heads - shape(query)[1]
    if missing == 0:
        return query
    return call(graph, aten.constant_pad_nd.default, query, [0, 0, 0, 0, 0, missing])
