"""Mask algebra: what an attention mask means, and how FIA is told.

    mask nodes ─ interpret ─▶ values ─ parts ─▶ meaning ─ plan ─▶ arguments ─ emit ─▶ nodes

* ``linear``, ``formula``, ``values``: integers, truths and floats as functions of a tensor's index;
* ``interpret`` and ``rules_*``: the value of each node, operator by operator; ``prover`` and ``facts``: what
  is certain about integers;
* ``parts``, ``atoms``, ``meaning``: a site's mask terms as a predicate over batch, head, query and key, and
  what is left as a bias;
* ``plan``: sparse mode, band, key lengths, or an explicit mask;
* ``writer``, ``integers``, ``explicit``, ``run_time``, ``emit``: the nodes that the plan needs;
* ``evaluate``: a predicate on concrete values, for tests and checks.

What can't be proved stays as the program computed it: slower, never wrong.
"""
