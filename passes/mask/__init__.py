"""Mask algebra: what an attention mask means, and how FIA is told."""
