"""What a user can say about multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MlaOptions:
    """``form``: attention over latents, over keys expanded from them, or by cost, wherever it is legal.

    ``max_context_tokens``: tokens of a cache of latents, over all requests, that are expanded at a time.
    ``fusions``: on a device, the product behind absorbed attention as npu_transpose_batchmatmul ("output"),
    and norm, rotation and cache write of new latents as npu_kv_rmsnorm_rope_cache too ("all").
    """

    form: Literal["auto", "absorb", "expand"] = "auto"
    max_context_tokens: int = 32768
    fusions: Literal["none", "output", "all"] = "output"
