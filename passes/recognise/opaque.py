"""Attention inside an operator that can't be opened: always declined, always reported."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.recognise.assemble import Declined, Parts
from npu_compile.passes.values import aten, is_call


def is_opaque(node: fx.Node) -> bool:
    return is_call(node, aten._transformer_encoder_layer_fwd, aten._native_multi_head_attention)


def match_opaque(node: fx.Node) -> Parts:
    """Raises Declined, saying how to get at the attention inside."""
    raise Declined(
        "torch's fused encoder layer hides its attention; "
        "call torch.backends.mha.set_fastpath_enabled(False) before compiling"
    )
