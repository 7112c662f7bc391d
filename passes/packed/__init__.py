"""packed: attention over sequences that lie one behind the other, as one call with a length for each.

* ``call``: the packed (TND) call itself, with head dims that the target takes;
* ``segments``: masks that let a token see its own segment only; ``segmented``: their packed call;
* ``pieces``: one call for a loop of calls over the pieces of a sequence, whose results are put together.
"""
