"""FlashAttention's own operators in a graph, as FIA."""

from __future__ import annotations

from npu_compile.passes.flash_calls.rewrite import translate_flash_calls

__all__ = ["translate_flash_calls"]
