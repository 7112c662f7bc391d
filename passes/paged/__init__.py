"""paged: attention and writes on paged K/V caches.

* ``gathers``, ``table_index``: what a program gathers, and the proof that it goes by block table;
* ``rewrite``: the fused call that reads the cache in place; ``antiquant``: int8 caches that it dequantises;
* ``cache_writes``: which writes stay as they are.
"""
