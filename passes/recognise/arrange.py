"""Which axes of attention are batch, heads, queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from npu_compile.passes.axes import Axis, Dim, Frame
from npu_compile.passes.recognise.assemble import Declined
from npu_compile.passes.recognise.placing import held_axes
from npu_compile.passes.recognise.probabilities import Weighted
from npu_compile.passes.recognise.scores import Beside, Scores
from npu_compile.passes.values import same, shape

_ORDER = "the axes of the scores are used in another order than batch, heads, queries, keys"


@dataclass(frozen=True)
class Arrangement:
    """The axes of each dimension of (B, N, Q, K) scores, of D and D_v, and the heads of K and V.

    ``left_is_query``: which factor of the scores is the query.
    """

    batch: Dim
    heads: Dim
    query: Dim
    key: Dim
    head_dim: Dim
    value_dim: Dim
    kv_heads: Dim
    left_is_query: bool

    @property
    def scores(self) -> Frame:
        return (self.batch, self.heads, self.query, self.key)


def arrange(scores: Scores, weighted: Weighted, over: int) -> Arrangement:
    """Sort the axes; ``over`` is the dimension of the scores that the softmax is taken over.

    Raises:
        Declined: they are not those of attention.
    """
    left, right, frame = (scores.axes.resolve(f) for f in (scores.left, scores.right, scores.frame))
    value_frame, result = (scores.axes.resolve(f) for f in (weighted.value_frame, weighted.frame))
    keys = frame[over]
    in_left, in_right = held_axes(left), held_axes(right)
    summed = tuple(a for dim in left for a in dim if a in in_right and a not in held_axes(frame))
    if set(keys) <= in_right - in_left:
        left_is_query, of_query, of_key = True, in_left, in_right
    elif set(keys) <= in_left - in_right:
        left_is_query, of_query, of_key = False, in_right, in_left
    else:
        raise Declined(_ORDER)
    rows = [axis for i, dim in enumerate(frame) if i != over for axis in dim]
    of_value = held_axes(value_frame)
    value_dim = tuple(a for dim in value_frame for a in dim if a not in keys and a not in rows)
    summed_over = held_axes(scores.axes.resolve((tuple(weighted.summed),)))
    if summed_over != set(keys) or any(a in held_axes(result) for a in keys):
        raise Declined(_ORDER)
    if not set(value_dim) <= held_axes(result) or set(rows) - held_axes(result):
        raise Declined(_ORDER)
    if not set(rows) <= of_query | of_key:
        raise Declined(_ORDER)
    shared = [axis for axis in rows if axis in of_key]
    if shared != [axis for axis in rows if axis in of_value]:
        # Mixed heads and routers look like this: it could be computed, on copies larger than the scores.
        raise Declined("keys and values do not have the same batch and heads")
    own = [axis for axis in rows if axis not in shared]
    *leading, last = (dim for i, dim in enumerate(frame) if i != over)
    masked = _masked_axes(scores)
    query = _query(own, last, masked)
    of_queries = tuple(axis for axis in own if axis not in query)
    head = _head(shared, masked, one_head=bool(of_queries) or leading[-1:] == [()])
    return Arrangement(
        batch=tuple(axis for axis in shared if axis not in head),
        heads=(*head, *of_queries),
        query=query,
        key=keys,
        head_dim=summed,
        value_dim=value_dim,
        kv_heads=head,
        left_is_query=left_is_query,
    )


def _query(own: list[Axis], last: Dim, masked: set[Axis]) -> Dim:
    """The query axis among those that keys don't have: the others are heads that share keys.

    The last one, as programs write it, unless masks depend on another one and not on that.
    """
    if not own:
        return ()
    if last and set(last) <= set(own) and (set(last) & masked or not set(own) & masked):
        return last
    if last == () and not set(own) & masked:
        return ()
    return (([axis for axis in own if axis in masked] or own)[-1],)


def _head(shared: list[Axis], masked: set[Axis], one_head: bool) -> Dim:
    """The head axis among those that keys have: the last whose size is known; the rest is batch.

    A single one is heads of batch 1, unless keys have ``one_head``, or masks depend on it: they may differ
    between batch elements.
    """
    known = [axis for axis in shared if isinstance(axis.size, int)]
    if not known or (len(shared) == 1 and (one_head or shared[0] in masked)):
        return ()
    return (known[-1],)


def _masked_axes(scores: Scores) -> set[Axis]:
    return {axis for mask in scores.masks for axis in held_axes(frame_of(mask, scores))}


def frame_of(beside: Beside, scores: Scores) -> Frame:
    """The axes of a mask, scale or sink."""
    node = beside.what.node
    assert node is not None
    sizes = shape(node)
    frame = scores.axes.resolve(beside.frame)
    if len(sizes) > len(frame):
        raise Declined(f"the mask {node.name} has more dimensions than the scores")
    own = frame[len(frame) - len(sizes) :]
    return tuple(() if same(size, 1) else dim for dim, size in zip(own, sizes, strict=True))
