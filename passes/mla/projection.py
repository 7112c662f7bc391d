"""Reading a tensor as some rows per head of a linear projection, by its strides.

A view of a projection's result, whatever operators made it, is known by how it steps through
the result's memory; so no chain of view, transpose and split has to be matched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from npu_compile.passes.mla.pieces import owner, unsliced
from npu_compile.passes.mla.site import HeadRows
from npu_compile.passes.site import Operand, Views
from npu_compile.passes.values import Writes, argument, aten, is_call, same, same_shape, shape, value


class Unprojected(Exception):
    """The tensor isn't per-head rows of a usable linear projection; the message says why."""


@dataclass(frozen=True)
class Projected:
    """(B, N, S, D): head n is ``latent`` (B, 1, S, L) times the rows of head n, transposed."""

    latent: Operand
    rows: HeadRows


def projected(read: Operand, writes: Writes) -> Projected:
    """How ``read``, (B, N, S, D), is made by a linear projection.

    Raises:
        Unprojected: it isn't, or the projection has a bias, a computed weight, or another form.
    """
    found = unsliced(read)
    if found is None:
        raise Unprojected("the keys' own part is rearranged after its projection")
    whole, cuts = found
    linear = owner(whole.node)
    if not is_call(linear, aten.linear):
        raise Unprojected(f"the keys' own part is made by {_name(linear)}, not by a linear projection")
    if argument(linear, 2, "bias") is not None:
        raise Unprojected("the projection of the latent has a bias")
    if written := writes.to(linear):
        raise Unprojected(f"the projected latent is changed in place by {written[0].name}")
    latent, weight = argument(linear, 0, "input"), argument(linear, 1, "weight")
    _check_weight(weight)
    if value(linear).dtype != value(latent).dtype:
        dtypes = f"in {value(linear).dtype} from a latent of {value(latent).dtype}"
        raise Unprojected(f"autocast computes the keys' own part {dtypes}")
    sequence = _sequence_of(latent)
    if sequence is None:
        raise Unprojected(f"the latent has shape {tuple(shape(latent))}: one head is needed")
    rows = _rows(_heads_first(whole), value(linear), sequence, weight)
    return Projected(Operand(latent, linear, _as_one_head(latent) + cuts), rows)


def _heads_first(read: Operand) -> torch.Tensor:
    return value(read.node).transpose(1, 2) if read.views else value(read.node)


def _sequence_of(latent: fx.Node) -> Any:
    """S of a (B, S, L) or (B, 1, S, L) latent, None for other shapes."""
    sizes = shape(latent)
    if len(sizes) == 3:
        return sizes[1]
    return sizes[2] if len(sizes) == 4 and same(sizes[1], 1) else None


def _as_one_head(latent: fx.Node) -> Views:
    return ((aten.unsqueeze.default, (1,)),) if len(shape(latent)) == 3 else ()


def _rows(view: torch.Tensor, result: torch.Tensor, sequence: Any, weight: fx.Node) -> HeadRows:
    """Which rows of the weight head n of ``view`` (B, N, S, D) is made of."""
    rows, width = result.shape[-1], view.shape[-1]
    heads = view.shape[1]
    fits = same_shape(tuple(view.shape), (result.shape[0], heads, sequence, width))
    if not fits or not isinstance(rows, int) or not isinstance(heads, int) or not isinstance(width, int):
        raise Unprojected("the keys' own part is not a view of its projection")
    stride = view.stride(1) if heads > 1 else rows
    start = view.storage_offset() - result.storage_offset()
    expected = (sequence * rows, stride, rows, 1)
    steps = zip(view.shape, view.stride(), expected, strict=True)
    in_order = all(same(size, 1) or same(mine, wanted) for size, mine, wanted in steps)
    if not in_order or not isinstance(start, int) or not isinstance(stride, int):
        raise Unprojected("the heads are not rows of one projection side by side")
    whole_rows = heads * stride == rows and start + width <= stride
    if not whole_rows and (width > stride or start + heads * stride > rows):
        raise Unprojected("the heads are not equal shares of the rows of their projection")
    return HeadRows(weight, start, stride, width)


def _check_weight(weight: fx.Node) -> None:
    """The weight is a parameter, at most cast between float dtypes."""
    node = weight
    while is_call(node, aten.to, aten._to_copy):
        node = argument(node, 0, "self")
    if node.op not in ("placeholder", "get_attr"):
        raise Unprojected(f"the weight of the latent's projection is computed by {_name(node)}: quantised?")
    if value(node).dtype.itemsize < 2 or not value(node).dtype.is_floating_point:
        raise Unprojected(f"the weight of the latent's projection is quantised ({value(node).dtype})")


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_function" else node.op
