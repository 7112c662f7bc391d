"""recognise: calls of ``scaled_dot_product_attention`` in every call form."""

from __future__ import annotations

import torch
from torch import fx

from npu_compile.passes.recognise.assemble import Declined, Parts, batched, unbatched
from npu_compile.passes.recognise.leading import Leading
from npu_compile.passes.site import MaskTerm
from npu_compile.passes.specialise import given_number, specialised
from npu_compile.passes.values import argument, aten, is_call, is_tensor, node_input, operand, shape, value


def is_sdpa(node: fx.Node) -> bool:
    return is_call(node, aten.scaled_dot_product_attention.default)


def match_sdpa(node: fx.Node) -> Parts:
    """The parts of an SDPA call.

    Raises:
        Declined: dropout is active, or the scale is not a number known when compiling.
    """
    query, key, value_ = (node_input(node, position) for position in range(3))
    if argument(node, 4, "dropout_p", 0.0) != 0.0:
        raise Declined("dropout is active: the fused operator has no dropout")
    given = node.kwargs.get("scale")
    scale = _default_scale(query) if given is None else given_number(given)
    if scale is None:
        raise Declined("the scale is not a number known when compiling")
    leading = Leading(query, key, value_) if len(shape(query)) > 4 else None
    masks: list[MaskTerm] = []
    if argument(node, 5, "is_causal", False):
        masks.append(MaskTerm("causal"))
    mask = argument(node, 3, "attn_mask")
    if mask is not None:
        if not is_tensor(mask):
            raise Declined("the attention mask is not a tensor")
        views = leading.mask_views(mask) if leading else ()
        masks.append(MaskTerm("keep" if value(mask).dtype == torch.bool else "add", mask, views=views))
    result = value(node).dtype
    reads = [operand(given, node) for given in (query, key, value_)]
    reads = [leading.folded(read) if leading else batched(read) for read in reads]
    return Parts(
        form="sdpa",
        output=node,
        output_views=leading.unfolded(node) if leading else unbatched(len(shape(query))),
        query=reads[0],
        key=reads[1],
        value=reads[2],
        scale=scale,
        masks=tuple(masks),
        softmax_dtype=torch.float32 if result.itemsize < 4 else result,
        # Without autocast, SDPA takes operands of one dtype and returns it.
        autocast=result if any(value(given).dtype != result for given in (query, key, value_)) else None,
    )


def _default_scale(query: fx.Node) -> float:
    width = specialised(shape(query)[-1])
    if width is None:
        raise Declined("the head dimension is symbolic")
    return float(width**-0.5) if width else 1.0
