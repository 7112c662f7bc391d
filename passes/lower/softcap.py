"""Soft-capped scores: FIA has no such argument, so these sites become a declared decomposition."""

from __future__ import annotations

from npu_compile.passes.lower.forms import CallForm, Operands
from npu_compile.passes.lower.masks import MaskArguments
from npu_compile.passes.site import AttentionSite
from npu_compile.passes.values import node_input

SOFTCAP = "softcap_attention"


def softcap_form(site: AttentionSite, operands: Operands, masks: MaskArguments) -> CallForm:
    """kernels/composed/softcap, which takes any strides, and lengths on the device that they are made on."""
    tensors = {"query": operands.query, "key": operands.key, "value": operands.value, **masks.tensors}
    lengths = tensors.get("actual_seq_lengths_kv")
    if lengths is not None:  # a host_lengths node
        tensors["actual_seq_lengths_kv"] = node_input(lengths)
    plain = {
        "num_heads": site.scores.heads,
        "num_key_value_heads": site.num_key_value_heads,
        "scale": site.scale,
        "softcap": site.softcap,
        "input_layout": "BNSD",
        **masks.plain,
    }
    return CallForm(SOFTCAP, tensors, plain, notes=("of torch's own operators: FIA has no soft cap",))
