"""Whether a float that is added to scores can drop any of them, by how it is computed."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from npu_compile.passes.constant import written_down
from npu_compile.passes.values import aten, is_call, is_tensor, value, written_through

LARGE = 1e10
"""Numbers of this magnitude may be meant as minus infinity."""

_LEARNED = (aten.embedding, aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm, aten.einsum)
"""Results of weights: numbers of the size of scores."""

_ARITHMETIC = (aten.add, aten.sub, aten.rsub, aten.mul, aten.neg, aten.abs, aten.tanh, aten.sigmoid, aten.cat)
_COPIES = (aten.to, aten._to_copy, aten.clone, aten.contiguous, aten.detach, aten.repeat, aten.stack)
_VIEWS = (aten.expand, aten.unsqueeze, aten.squeeze, aten.view, aten.reshape, aten.permute, aten.transpose)
_PARTS = (aten.slice, aten.select, aten.index_select, aten.flatten, aten.lift_fresh_copy, aten.lift_fresh)
_MOVED = (aten.gather, aten.take_along_dim, aten._unsafe_view, aten.unflatten, aten.flip)
_NUMBERS = (aten.zeros, aten.ones, aten.new_zeros, aten.new_ones)
_STEPS = (*_ARITHMETIC, *_COPIES, *_VIEWS, *_PARTS, *_MOVED, *_NUMBERS)


def is_moderate(node: fx.Node, depth: int = 40) -> bool:
    """True for position biases: made of weights, indices and moderate constants by sums and products.

    False for what may hold -inf or a number close to it: an input of the graph, a selection by a
    condition, a division, a large constant, and everything that isn't known here.
    """
    if written_through(node):
        return False
    if not value(node).dtype.is_floating_point or is_call(node, *_LEARNED):
        return True
    if node.op == "get_attr":
        return _is_moderate_constant(node)
    by_number = (
        is_call(node, aten.div) and isinstance(node.args[1], (int, float)) and abs(node.args[1]) > 1e-6
    )
    if depth == 0 or not (is_call(node, *_STEPS) or by_number):
        return False
    inputs = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
    numbers = [x for x in inputs if isinstance(x, float)]
    tensors = [x for x in inputs if is_tensor(x)]
    return all(abs(n) < LARGE for n in numbers) and all(is_moderate(t, depth - 1) for t in tensors)


def _is_moderate_constant(node: fx.Node) -> bool:
    held = written_down(node)
    if held is None:
        return False
    with unset_fake_temporarily():
        return bool((held.abs() < LARGE).all())
