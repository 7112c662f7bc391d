"""flash_calls: FlashAttention's own operators in a graph become FIA, or stay with a reason.

* ``schemas``: the operators and what their arguments mean;
* ``band``: the keys that a call leaves visible, as a sparse_mode;
* ``forms``: the FIA call that computes the same; ``new_keys``: the write to the cache that comes before it;
* ``nodes``: small nodes that the calls of all layers share;
* ``rewrite``: the translation of a whole graph.
"""

from __future__ import annotations

from npu_compile.passes.flash_calls.rewrite import translate_flash_calls

__all__ = ["translate_flash_calls"]
