"""Attention and writes on paged K/V caches."""
