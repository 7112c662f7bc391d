"""Which rank holds which token: pure functions on lengths, without tensors of a model or a group.

| layout | used for |
|---|---|
| `Zigzag` | prefill: each sequence in 2R blocks, rank r computes blocks r and 2R-1-r |
| `Interleave` | decode: runs of I tokens dealt to the ranks in turn; where the KV cache lives |
| `DualChunkSwap` | the zigzag of mixed batches: equal chunks, decode requests on every rank |
| `round_robin` | token i on rank i mod R: `shard` and `restore` |

`context_parallel` uses the first two; all four are for engines that lay out their batches themselves.
"""

from . import round_robin
from .dual_chunk_swap import DualChunkSwap
from .interleave import Interleave
from .zigzag import Zigzag

__all__ = ["DualChunkSwap", "Interleave", "Zigzag", "round_robin"]
