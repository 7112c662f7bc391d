"""Reading an RMS norm and a rotary embedding off a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from npu_compile.passes.values import argument, aten, casts_or_copies, is_call, is_tensor, same, shape


@dataclass(frozen=True)
class Norm:
    """``input / sqrt(mean(input^2, -1) + epsilon) * weight``."""

    input: fx.Node
    weight: fx.Node
    epsilon: float


@dataclass(frozen=True)
class Rotation:
    """Elements 2i and 2i + 1 of ``input`` turned by cos and sin (..., R / 2), put at i and i + R / 2."""

    input: fx.Node
    cos: fx.Node
    sin: fx.Node


def norm_of(node: fx.Node) -> Norm | None:
    """The RMS norm that ``node`` is, seen through casts between float dtypes and an added head dim."""
    node = _uncast(_without_head_dim(node))
    if is_call(node, aten.rms_norm):
        weight, epsilon = argument(node, 2, "weight"), argument(node, 3, "eps")
        known = is_tensor(weight) and isinstance(epsilon, float)
        return Norm(argument(node, 0, "input"), weight, epsilon) if known else None
    for weight, normed in _factors(node):
        if len(shape(weight)) == 1:
            for scale, wide in _factors(_uncast(normed)):
                epsilon = _root_mean_square(scale, wide)
                if epsilon is not None:
                    return Norm(_uncast(wide), weight, epsilon)
    return None


def _root_mean_square(scale: fx.Node, wide: fx.Node) -> float | None:
    """The epsilon for which ``scale`` is 1 / sqrt(mean(wide^2, -1) + epsilon), or None."""
    if not is_call(scale, aten.rsqrt):
        return None
    added = argument(scale, 0, "self")
    epsilon = argument(added, 1, "other") if is_call(added, aten.add) else None
    mean = argument(added, 0, "self") if isinstance(epsilon, float) else None
    if not is_call(mean, aten.mean.dim) or argument(mean, 1, "dim") not in ([-1], [len(shape(wide)) - 1]):
        return None
    square = argument(mean, 0, "self")
    squared = is_call(square, aten.pow.Tensor_Scalar) and argument(square, 1, "exponent") == 2
    squared = squared or (is_call(square, aten.mul) and argument(square, 1, "other") is wide)
    squared = squared or is_call(square, aten.square)
    return epsilon if squared and argument(square, 0, "self") is wide else None


def rotation_of(node: fx.Node) -> Rotation | None:
    """The rotation of neighbouring elements that ``node`` is: cat(even cos - odd sin, odd cos + even sin)."""
    node = _uncast(node)
    if not is_call(node, aten.cat) or argument(node, 1, "dim", 0) not in (-1, len(shape(node)) - 1):
        return None
    halves = argument(node, 0, "tensors")
    if len(halves) != 2 or not is_call(halves[0], aten.sub.Tensor) or not is_call(halves[1], aten.add.Tensor):
        return None
    if any(argument(half, 2, "alpha", 1) != 1 for half in halves):
        return None
    for even, cos in _factors(argument(halves[0], 0, "self")):
        for odd, sin in _factors(argument(halves[0], 1, "other")):
            sums = [{frozenset((odd, cos)), frozenset((even, sin))}]
            terms = {_pair(argument(halves[1], i, name)) for i, name in enumerate(("self", "other"))}
            source = _every_other(even, 0)
            if terms in sums and source is not None and source is _every_other(odd, 1):
                return Rotation(source, cos, sin)
    return None


def _pair(node: Any) -> frozenset[fx.Node]:
    return frozenset(next(_factors(node), ()))


def _factors(node: Any) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The two tensors of a product, in both orders."""
    if is_call(node, aten.mul.Tensor):
        a, b = argument(node, 0, "self"), argument(node, 1, "other")
        if is_tensor(a) and is_tensor(b):
            yield a, b
            yield b, a


def _every_other(node: fx.Node, first: int) -> fx.Node | None:
    """What ``node`` is every second element of, along the last dim."""
    if not is_call(node, aten.slice.Tensor) or argument(node, 4, "step", 1) != 2:
        return None
    source = argument(node, 0, "self")
    last = argument(node, 1, "dim", 0) % len(shape(node)) == len(shape(node)) - 1
    begins = argument(node, 2, "start") in ((None, 0) if first == 0 else (first,))
    return source if last and begins and same(shape(node)[-1] * 2, shape(source)[-1]) else None


def _uncast(node: fx.Node) -> fx.Node:
    """``node`` from before casts between float dtypes."""
    while casts_or_copies(node):
        node = argument(node, 0, "self")
    return node


def _without_head_dim(node: fx.Node) -> fx.Node:
    """(B, S, L) of a (B, 1, S, L) that was made by a view of it."""
    if is_call(node, aten.view, aten.reshape, aten._unsafe_view, aten.unsqueeze) and len(shape(node)) == 4:
        source = argument(node, 0, "self")
        if len(shape(source)) == 3 and same(shape(node)[1], 1) and same(shape(source)[1], shape(node)[2]):
            return source
    return node
