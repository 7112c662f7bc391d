"""Context parallel: one batch's tokens, or one KV cache, over the ranks of a group."""
