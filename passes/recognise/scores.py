"""How what goes into a softmax is made of a product: scales, masks, casts, reshapes, a sink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from npu_compile.passes.recognise.product import Product, match_product
from npu_compile.passes.recognise.score_steps import Step, steps_to
from npu_compile.passes.site import MaskTerm, Operand
from npu_compile.passes.values import operand, same, same_shape, shape, value

_MAX_STEPS = 24
_FLAT_HEADS = "a mask or scale is given per batch and head in one dimension"


@dataclass(frozen=True)
class Scores:
    """What goes into the softmax: a product, and what was done to it since, in program order."""

    product: Product
    scale: float = 1.0
    tensor_scales: tuple[fx.Node, ...] = ()
    masks: tuple[MaskTerm, ...] = ()
    mask_dtype: torch.dtype | None = None
    wide: tuple[Any, ...] | None = None
    """The (B, N, Q, K) shape that the scores have had on the way, if any."""
    sink: Operand | None = None
    """(..., 1): a logit that joins each row, once everything else is done to the scores."""
    obstacle: str | None = None


def scores_of(node: Any, *readers: fx.Node, steps_left: int = _MAX_STEPS) -> Scores | None:
    """How ``node`` is made of a product of activations; None if it isn't.

    ``readers`` are those that need it for the attention alone; for others it would have to stay.
    """
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor) or steps_left == 0:
        return None
    product = match_product(node)
    if product is not None:
        found = Scores(product, product.scale, wide=shape(node) if len(shape(node)) == 4 else None)
        if product.added is not None:
            found = _then(found, Step(node, mask=product.added), node)
    else:
        for step in steps_to(node):
            inner = scores_of(step.scores, node, *step.beside, steps_left=steps_left - 1)
            if inner is not None:
                found = _then(inner, step, node)
                break
        else:
            return None
    others = ", ".join(user.name for user in node.users if user not in readers)
    if others:
        return replace(found, obstacle=found.obstacle or f"the scores are also used by {others}")
    return found


def _then(done: Scores, step: Step, node: fx.Node) -> Scores:
    """``done`` followed by one more step, which makes ``node``."""
    if step.obstacle is not None:
        return replace(done, obstacle=done.obstacle or step.obstacle)
    if done.sink is not None and (step.mask, step.floor, step.sink, step.scale) != (None, None, None, 1.0):
        return replace(done, obstacle="the scores are changed after a sink has joined them")
    if step.sink is not None:
        if len(shape(step.sink)) == 3 and done.wide is not None:
            return replace(done, obstacle=_FLAT_HEADS)
        return replace(done, sink=operand(step.sink, node))
    if (step.mask is not None or isinstance(step.scale, fx.Node)) and _regrouped(done, node):
        return replace(done, obstacle="a mask or scale is applied where batch and heads are regrouped")
    if step.floor is not None:
        if any(term.kind == "add" for term in done.masks):
            return replace(done, obstacle="the scores are clamped after a mask was added")
        raised = tuple(replace(term, fill=max(term.fill, step.floor)) for term in done.masks)
        done = replace(done, masks=raised)
    elif step.mask is not None:
        term = step.mask
        if len(shape(node)) == 3 and done.wide is not None and _per_flat_head(term.node):
            return replace(done, obstacle=_FLAT_HEADS)
        done = replace(done, masks=(*done.masks, term), mask_dtype=value(node).dtype)
    elif isinstance(step.scale, fx.Node) or step.scale != 1.0:
        if done.masks:
            return replace(done, obstacle="the scores are scaled after a mask was added")
        if isinstance(step.scale, fx.Node):
            if len(shape(node)) == 3 and done.wide is not None and _per_flat_head(step.scale):
                return replace(done, obstacle=_FLAT_HEADS)
            done = replace(done, tensor_scales=(*done.tensor_scales, step.scale))
        else:
            done = replace(done, scale=done.scale * step.scale)
    if done.wide is None and len(shape(node)) == 4:
        if any(map(_per_flat_head, (*(term.node for term in done.masks), *done.tensor_scales))):
            return replace(done, obstacle=_FLAT_HEADS)
        done = replace(done, wide=shape(node))
    return done


def _per_flat_head(node: fx.Node | None) -> bool:
    """A mask or scale (B*N, Q, K), which doesn't broadcast to scores of four dimensions."""
    return node is not None and len(shape(node)) == 3 and not same(shape(node)[0], 1)


def _regrouped(done: Scores, node: fx.Node) -> bool:
    """Whether ``node`` has four dimensions as the scores have had, but another batch and head count."""
    own = shape(node)
    return done.wide is not None and len(own) == 4 and not same_shape(own[:2], done.wide[:2])
