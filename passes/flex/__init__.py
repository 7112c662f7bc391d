"""flex: masks and biases written as functions of one (batch, head, query, key) index, written out over all.

* ``scalar_program``: which functions of single elements can be evaluated over whole index ranges by
  broadcasting, and the nodes that do it;
* ``shared_calls``: one node for what all layers compute alike;
* ``score_mod``: what a ``score_mod`` does to a score, and why some can't be fused;
* ``attention``: ``flex_attention`` with such mods as ``scaled_dot_product_attention`` with a mask;
* ``soft_capped``: the same where the scores are soft-capped, as products and a softmax.

What comes out is ordinary ATen arithmetic on index tensors, which ``passes/mask`` gives a meaning.
"""
