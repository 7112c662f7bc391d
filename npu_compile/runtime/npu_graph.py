"""Capture on a real NPU: ``torch.npu.NPUGraph`` with its automatic dispatch records.

What torch_npu 2.13 leaves to its caller, and is done here:

* A capture refuses what other threads do, unless told to look at its own thread only.
* A failed capture leaves its stream current and its dispatch mode active; both are put back.
* Updates run on a stream of their own. Two steps in flight race unless that stream waits for the
  current one before each update.
* A replay without an update blocks the stream for ever; it is refused on the host.
* Records hold weak references, so the graph object keeps every external tensor alive.
* The dispatch mode doesn't see calls made inside another operator, so the body calls torch_npu's
  operators itself, with its lengths as keywords (others aren't recorded).
* ``NPUGraph.update`` ignores keys it doesn't know; every update is checked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .errors import WOULD_BLOCK, CaptureError, ReplayError
from .interface import Record, as_tuple, body_arguments, pinned, require_tensor_outputs
from .split import Split
from .update_plan import Update, UpdateCheck


def _npu() -> Any:
    """``torch.npu``, which only exists once torch_npu is loaded."""
    return torch.get_device_module("npu")


class NpuGraphRuntime:
    """Captures on the current device of ``torch.npu``; the graphs of one runtime share a memory pool."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: Any = None

    def capture(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> NpuGraph:
        if self._pool is None:
            self._pool = _npu().graph_pool_handle()
        return NpuGraph(split, args, updates, self._pool)

    def fence(self) -> None:
        current = _npu().current_stream()
        if self._stream is not None and current != self._stream:
            current.wait_stream(self._stream)
        self._stream = current

    def eager(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> tuple[Any, ...]:
        return as_tuple(split.body(*body_arguments(args, updates)))


class NpuGraph:
    """A captured NPUGraph; see :class:`~npu_compile.runtime.interface.CapturedGraph`."""

    def __init__(self, split: Split, args: Sequence[Any], updates: Sequence[Update], pool: Any) -> None:
        self._graph: Any = _npu().NPUGraph()
        self._args = pinned(args)
        recorder = _Recorder(split.body, self._graph)
        self.outputs = _capture(self._graph, pool, recorder, body_arguments(self._args, updates))
        self._rows = split.plan.rows
        self._positions = self._find_records(recorder)
        self._count = len(self._held)
        self._check = UpdateCheck([record.lengths for record in self.records])
        self._updated = self._count == 0

    @property
    def waits(self) -> bool:
        return self._count > 0

    @property
    def _held(self) -> list[Any]:
        """The records as torch_npu holds them, also of calls that aren't the plan's."""
        return list(self._graph.graph_dispatch_mode.graph_dispatch_records) if self._graph else []

    @property
    def records(self) -> list[Record]:
        held = self._held
        return [
            Record(
                op=held[position].op_cache_entry.__name__.partition(".")[0],
                lengths={key: held[position].kwargs[key] for key in row.sources},
            )
            for row, position in zip(self._rows, self._positions, strict=True)
        ]

    def _find_records(self, recorder: _Recorder) -> list[int]:
        """The position of each row's record; raises where a call left none, or one without its lengths."""
        held, positions = self._held, []
        for row in self._rows:
            position = recorder.positions.get(row.node)
            if position is None:
                raise CaptureError(f"torch_npu recorded no update for {row.op}", row.node)
            missing = [key for key in row.sources if key not in held[position].kwargs]
            if missing:
                raise CaptureError(f"torch_npu recorded {row.op} without {', '.join(missing)}", row.node)
            positions.append(position)
        return positions

    def update(self, updates: Sequence[Update]) -> None:
        self._check(updates)
        self._graph.graph_dispatch_mode.update_stream.wait_stream(_npu().current_stream())
        self._graph.update(self._payload(updates))
        self._updated = True

    def _payload(self, updates: Sequence[Update]) -> list[Update]:
        """One update for every record that torch_npu holds; what is not the plan's keeps what it has."""
        if self._positions == list(range(self._count)):
            return list(updates)
        payload: list[Update] = [{} for _ in range(self._count)]
        for index, position in enumerate(self._positions):
            payload[position] = updates[0] if len(updates) == 1 else updates[index]
        return payload

    def replay(self) -> None:
        if self._graph is None:
            raise ReplayError("the graph was reset; capture it again")
        if not self._updated:
            raise ReplayError(WOULD_BLOCK)
        self._updated = self._count == 0
        self._graph.replay()

    def reset(self) -> None:
        if self._graph is not None:
            _npu().synchronize()
            self._graph.graph_dispatch_mode.graph_dispatch_records.clear()
            self._graph.reset()
        self._graph, self._args, self.outputs, self._rows, self._positions = None, [], (), (), []


class _Recorder(fx.Interpreter):
    """Runs a body under capture and notes which dispatch record each call made."""

    def __init__(self, body: fx.GraphModule, graph: Any) -> None:
        super().__init__(body)
        self._mode = graph.graph_dispatch_mode
        self.positions: dict[str, int] = {}
        self.node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        before = len(self._mode.graph_dispatch_records)
        result = super().run_node(n)
        if len(self._mode.graph_dispatch_records) > before:
            self.positions[n.name] = before
        return result


def _capture(graph: Any, pool: Any, recorder: _Recorder, args: Sequence[Any]) -> tuple[Any, ...]:
    modes, stream = len(_get_current_dispatch_mode_stack()), _npu().current_stream()
    context = _npu().graph(graph, pool=pool, auto_dispatch_capture=True, capture_error_mode="thread_local")
    try:
        with context:
            outputs = as_tuple(recorder.run(*args))
        require_tensor_outputs(outputs)
        return outputs
    except BaseException as error:
        while len(_get_current_dispatch_mode_stack()) > modes:
            graph.graph_dispatch_mode.__exit__(None, None, None)
        _npu().set_stream(stream)
        graph.reset()
        cause = error.__context__ or error  # capture_end raises on its own account over the real error
        if not isinstance(cause, Exception):
            raise
        name = recorder.node.name if recorder.node else ""
        raise CaptureError(f"{type(cause).__name__}: {cause}", name) from error
