"""Batches padded to the next captured size: rows added before a step, and cut off after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import AscendFiaError
from .batch_rows import BatchRows, NotPaddable, find_batch
from .capture_sizes import capture_sizes, select_size
from .options import CaptureOptions
from .padding_writes import skip_padding


class BatchPadding:
    """Pads the inputs of a graph whose batch is ``rows``, with 0 or what ``rows.fills`` says."""

    def __init__(self, rows: BatchRows, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._rows = rows
        self._buffers: dict[tuple[int, int], Tensor] = {}

    def batch(self, args: Sequence[Any]) -> int:
        """The number of rows of a call. Raises :class:`AscendFiaError` where its inputs don't agree."""
        sizes = {args[i].shape[dim] for i, dim in self._rows.inputs.items()} | {
            args[i] for i in self._rows.ints
        }
        if len(sizes) != 1:
            raise AscendFiaError("batch", sorted(sizes), "all inputs of a step must have the same batch size")
        return int(sizes.pop())

    def pad(self, args: Sequence[Any], size: int) -> list[Any]:
        """``args`` with ``size`` rows. The padded tensors are buffers, good until the next call."""
        padded = list(args)
        for i in self._rows.ints:
            padded[i] = size
        for i, dim in self._rows.inputs.items():
            padded[i] = self._pad(i, args[i], dim, size)
        return padded

    def _pad(self, position: int, tensor: Tensor, dim: int, size: int) -> Tensor:
        buffer = self._buffers.get((position, size))
        if buffer is None:
            shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
            with torch.inference_mode(False):
                buffer = self._buffers[position, size] = tensor.new_empty(shape)
        batch = tensor.shape[dim]
        buffer.narrow(dim, 0, batch).copy_(tensor)
        buffer.narrow(dim, batch, size - batch).fill_(self._rows.fills.get(position, 0))
        return buffer

    def cut(self, results: Sequence[Any], batch: int) -> list[Any]:
        """The results without the rows of padding."""
        cut = list(results)
        for i in self._rows.int_results:
            cut[i] = batch
        for i, dim in self._rows.results.items():
            cut[i] = cut[i].narrow(dim, 0, batch)
        return cut

    def select(self, batch: int) -> int | None:
        """The captured size for a batch; None where it is larger than all of them."""
        return select_size(self.sizes, batch)

    def forget(self) -> None:
        """Drop the buffers."""
        self._buffers.clear()


def padding_for(
    gm: fx.GraphModule, options: CaptureOptions
) -> tuple[fx.GraphModule, BatchPadding | None, str | None]:
    """A graph that can be padded, and how; or ``gm``, and why it can't be (None if nobody asked)."""
    if options.capture_sizes is None and options.max_batch is None:
        return gm, None, None
    sizes = capture_sizes(options.max_batch or 1, options.capture_sizes)
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copy = fx.GraphModule(gm, graph)
    try:
        rows = find_batch(copy)
    except NotPaddable as reason:
        return gm, None, str(reason)
    skip_padding(graph, rows.writes)
    copy.recompile()
    return copy, BatchPadding(rows, sizes), None
