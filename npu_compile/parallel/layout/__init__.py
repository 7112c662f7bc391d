"""Which rank holds which token: pure functions on lengths, without tensors of a model or a group.

| layout | used for |
|---|---|
| `zigzag` | prefill: each sequence in 2R blocks, rank r computes blocks r and 2R-1-r |
| `interleave` | decode: runs of I tokens dealt to the ranks in turn; where the KV cache lives |
| `round_robin` | token i on rank i mod R |
| `dual_chunk_swap` | the zigzag of mixed batches: equal chunks, decode requests on every rank |
"""
