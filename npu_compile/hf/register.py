"""Make "ascend_fia" an attention implementation of transformers."""

from __future__ import annotations

from ..kernels.graph_ops import ensure_graph_ops

ATTENTION = "ascend_fia"
"""The name for ``attn_implementation=`` and ``set_attn_implementation()``."""


def register(continuous_batching: bool = True) -> None:
    """Register the attention implementation; does nothing the second time.

    It is then known to every model of the process and used by those that are told to:
    ``model.set_attn_implementation("ascend_fia")``. With ``continuous_batching``, those models'
    ``generate_batch`` and serving run on block tables, on every device; where the installed transformers
    isn't one whose engine is known, that is left out with a warning.

    Raises ImportError without transformers.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    from .attention import FiaAttention, fia_mask
    from .batching.engine import install

    ensure_graph_ops()
    if ATTENTION not in AttentionInterface._global_mapping:
        AttentionInterface.register(ATTENTION, FiaAttention())
        AttentionMaskInterface.register(ATTENTION, fia_mask)
    if continuous_batching:
        install()
