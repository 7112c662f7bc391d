"""How what goes into a softmax is made of a product: scales, masks, casts, views, a sink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from npu_compile.passes.axes import Axes, Axis, Frame
from npu_compile.passes.constant import is_symbolic
from npu_compile.passes.recognise.product import Product, match_product
from npu_compile.passes.recognise.score_steps import Step, steps_to
from npu_compile.passes.recognise.where_from import operator_name
from npu_compile.passes.site import MaskTerm, Operand
from npu_compile.passes.specialise import specialised
from npu_compile.passes.values import aten, operand, same, shape, value

_MAX_STEPS = 24
_AS_GOOD_AS_MASKED = -1000.0
"""Scores below it have no weight beside a row's maximum, which is 0 once it is taken off."""


@dataclass(frozen=True)
class Beside:
    """A mask, scale or sink as it was joined to scores of ``frame``: aligned with it at the right."""

    what: MaskTerm | Operand
    frame: Frame


@dataclass(frozen=True)
class Scores:
    """What goes into the softmax: a product, and what was done to it since, in program order.

    ``left``, ``right`` and ``frame``: the axes of the product's factors and of the scores as they are now.
    ``shifted``: less something that a row has in common, which only the softmax takes no notice of.
    ``before_tanh``: the scale inside of a soft cap; ``scale`` is then what the tanh is multiplied by.
    """

    product: Product
    axes: Axes
    left: Frame
    right: Frame
    frame: Frame
    scale: float = 1.0
    tensor_scales: tuple[Beside, ...] = ()
    masks: tuple[Beside, ...] = ()
    mask_dtype: torch.dtype | None = None
    sink: Beside | None = None
    before_tanh: float | None = None
    shifted: bool = False
    obstacle: str | None = None


def scores_of(node: Any, *readers: fx.Node, steps_left: int = _MAX_STEPS) -> Scores | None:
    """How ``node`` is made of a product of activations; None if it isn't.

    ``readers`` are those that need it for the attention alone; for others it would have to stay.
    """
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), torch.Tensor) or steps_left == 0:
        return None
    product = match_product(node)
    if product is not None:
        found = _of_product(product)
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
    others = ", ".join(sorted({operator_name(user) for user in node.users if user not in readers}))
    if others:
        return replace(found, obstacle=found.obstacle or f"the scores are also used by {others}")
    return found


def _of_product(product: Product) -> Scores:
    named: dict[str, Axis] = {}
    for node, letters in zip((product.left, product.right), product.letters, strict=False):
        for letter, size in zip(letters, shape(node), strict=True):
            if letter and not same(size, 1):
                named.setdefault(letter, Axis(size))

    def frame(letters: tuple[str, ...]) -> Frame:
        return tuple((named[letter],) if letter in named else () for letter in letters)

    left, right, result = map(frame, product.letters)
    return Scores(product, Axes(), left, right, result, product.scale)


def _then(done: Scores, step: Step, node: fx.Node) -> Scores:
    """``done`` followed by one more step, which makes ``node``."""
    if step.obstacle is not None:
        return replace(done, obstacle=done.obstacle or step.obstacle)
    if step.moves:
        frame = done.axes.after(node, done.frame)
        if frame is None:
            regrouped = f"the axes of the scores are regrouped by {operator_name(node)}"
            return replace(done, obstacle=done.obstacle or regrouped)
        return replace(done, frame=frame)
    if done.sink is not None and (
        step.caps or (step.mask, step.floor, step.sink, step.scale) != (None, None, None, 1.0)
    ):
        return replace(done, obstacle="the scores are changed after a sink has joined them")
    if step.beside:
        return replace(done, shifted=True)
    if done.shifted and (what := _not_relative(step)):
        return _obstructed(done, f"the row maximum is taken off the scores before {what}")
    if step.sink is not None:
        return replace(done, sink=Beside(operand(step.sink, node), done.frame))
    if step.caps:
        if done.masks:
            return _obstructed(done, "the scores are soft-capped (tanh) after a mask was added")
        if done.before_tanh is not None:
            return _obstructed(done, "the scores are soft-capped (tanh) twice")
        return replace(done, before_tanh=done.scale, scale=1.0)
    if step.floor is not None:
        return replace(done, masks=tuple(_raised(mask, step.floor) for mask in done.masks))
    if step.mask is not None:
        added = Beside(step.mask, done.frame)
        return replace(done, masks=(*done.masks, added), mask_dtype=value(node).dtype)
    if is_symbolic(step.scale):
        # Only here, where the scores are known to be a product: it adds a guard.
        number = specialised(step.scale.meta["val"])
        if not number:
            return _obstructed(done, "the scale is not a number known when compiling")
        step = replace(step, scale=1 / number if step.divides else number)
    if isinstance(step.scale, fx.Node):
        if done.masks:
            return _obstructed(done, "the scores are scaled by a tensor after a mask was added")
        if done.before_tanh is not None:
            return _obstructed(done, "the scores are scaled by a tensor after they were soft-capped")
        factor = Beside(operand(step.scale, node), done.frame)
        return replace(done, tensor_scales=(*done.tensor_scales, factor))
    if step.scale != 1.0 and done.masks:
        if step.scale < 0:
            return replace(done, obstacle="the scores change their sign after a mask was added")
        masks = tuple(_scaled(mask, step.scale, value(node).dtype) for mask in done.masks)
        return replace(done, masks=masks, scale=done.scale * step.scale)
    return replace(done, scale=done.scale * step.scale)


def _not_relative(step: Step) -> str | None:
    """What a step does that depends on more than the differences of a row's scores."""
    if step.caps:
        return "a soft cap"
    if step.sink is not None:
        return "a sink"
    if step.mask is not None and step.mask.kind in ("keep", "drop") and step.mask.fill > _AS_GOOD_AS_MASKED:
        return f"some of them become {step.mask.fill}"
    return None


def _obstructed(done: Scores, why: str) -> Scores:
    """``done``, which can't be fused for the first reason that was met."""
    return replace(done, obstacle=done.obstacle or why)


def _term(mask: Beside) -> MaskTerm:
    assert isinstance(mask.what, MaskTerm)
    return mask.what


def _raised(mask: Beside, floor: float) -> Beside:
    """The mask that does the same to scores which are at least ``floor``, the smallest number, after it.

    Any score added to that number leaves it as it is.
    """
    term = _term(mask)
    if term.kind == "add":
        return replace(mask, what=replace(term, views=(*term.views, (aten.clamp_min.default, (floor,)))))
    return replace(mask, what=replace(term, fill=max(term.fill, floor)))


def _scaled(mask: Beside, factor: float, dtype: torch.dtype) -> Beside:
    """The mask that does the same to scores which are multiplied by ``factor`` first."""
    term = _term(mask)
    if term.kind == "add":
        views = (*term.views, (aten.mul.Tensor, (factor,)))
        return replace(mask, what=replace(term, views=views))
    fill = term.fill * factor
    return replace(mask, what=replace(term, fill=fill if fill >= torch.finfo(dtype).min else -float("inf")))
