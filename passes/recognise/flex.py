"""recognise: calls of ``flex_attention`` that could not be written as SDPA; always declined."""

from __future__ import annotations

from torch import fx

from npu_compile.passes.flex.attention import LEFT_BECAUSE
from npu_compile.passes.recognise.assemble import Declined, Parts


def match_flex(node: fx.Node) -> Parts:
    """Raises Declined with the reason that normalising found."""
    raise Declined(node.meta.get(LEFT_BECAUSE, "flex_attention was traced without its mods"))
