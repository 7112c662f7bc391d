"""What everybody has to know who merges attention over parts of the keys by log-sum-exp."""

MOST_PARTS = 16
"""Parts that one npu_attention_update takes (torch_npu docs)."""

EMPTY_BELOW = -1e38
"""A log-sum-exp below it marks a row without keys: decode kernels write -3.4e38; others write an infinity."""

FLOOR = -1e30
"""Stands for -inf inside the operator: finite, so that parts that are all empty don't give NaN."""
