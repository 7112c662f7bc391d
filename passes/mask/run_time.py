"""Emits a mask whose meaning only the run can tell: its terms are summed and classified in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from npu_compile.passes.mask.explicit import Emitted, MaskTensors
from npu_compile.passes.mask.parts import Part
from npu_compile.passes.mask.writer import Writer
from npu_compile.passes.values import aten, value

INF = float("inf")


def gap(total: torch.dtype) -> float:
    """How far a score must be below its row's largest mask value to have no part in the softmax.

    Scores of magnitude below 2**20 can't make up for it. float16 can't hold such a number; its own
    range less a little is what its masks use.
    """
    return 65000.0 if total == torch.float16 else 2.0**74 if total == torch.float64 else 2.0**45


def uniform_below(total: torch.dtype, softmax_dtype: torch.dtype) -> float | None:
    """A row whose largest mask value is below this is uniform: adding scores to it changes nothing.

    None: no value of ``total`` is that low, in ``softmax_dtype`` precision.
    """
    if total == torch.float16:
        return -32768.0 if softmax_dtype == torch.float16 else None
    return -(2.0**74) if softmax_dtype == torch.float64 else -(2.0**45)


def classify(
    writer: Writer, tensors: MaskTensors, parts: Sequence[Part], softmax_dtype: torch.dtype, by_head: bool
) -> Emitted:
    """The mask of ``parts``, applied in order.

    ``by_head``: it differs between heads, so that the bias must say it: (B, N, Q, K), with the dtype's
    minimum where a key has no part. Otherwise the bias is 0 there, and None if it is 0 elsewhere too.
    """
    call = writer.call
    total = summed(writer, tensors, parts, softmax_dtype)
    kind = value(total).dtype
    largest = call(aten.amax.default, total, [-1], True)
    lost = call(aten.lt.Tensor, total, call(aten.sub.Tensor, largest, gap(kind)))
    masked = call(aten.logical_or.default, lost, call(aten.eq.Scalar, total, -INF))
    void_rows = call(aten.eq.Scalar, largest, -INF)
    limit = uniform_below(kind, softmax_dtype)
    mean_rows = None
    if limit is not None:
        low = call(aten.le.Scalar, largest, limit)
        mean_rows = call(aten.logical_and.default, low, call(aten.ne.Scalar, largest, -INF))
    if not by_head and all(part.keep is not None for part in parts):
        return Emitted(masked, None, mean_rows, void_rows)
    bias = total
    if mean_rows is not None:
        bias = call(aten.where.self, mean_rows, call(aten.sub.Tensor, total, largest), total)
    bias = call(aten.masked_fill.Scalar, bias, masked, torch.finfo(kind).min if by_head else 0)
    return Emitted(masked, bias, mean_rows, void_rows)


def summed(
    writer: Writer, tensors: MaskTensors, parts: Sequence[Part], softmax_dtype: torch.dtype
) -> fx.Node:
    """What the parts add to a score, with masked scores taken as their fill value."""
    total: fx.Node | None = None
    for part in parts:
        if part.kind == "add":
            node = tensors.aligned(part)
            total = node if total is None else writer.call(aten.add.Tensor, total, node)
            continue
        masks = tensors.above_diagonal() if part.kind == "causal" else tensors.aligned(part)
        if total is None:
            total = writer.call(aten.zeros.default, [], dtype=softmax_dtype, device=value(masks).device)
        if part.kind == "keep":
            total = writer.call(aten.where.ScalarOther, masks, total, part.fill)
        else:
            total = writer.call(aten.where.ScalarSelf, masks, part.fill, total)
    assert total is not None
    return total
