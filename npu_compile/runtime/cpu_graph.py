"""NPUGraph, simulated on CPU: the same records, the same refusals, the same traps.

What is simulated, after torch_npu 2.13:

* Capturing runs nothing. It refuses what needs the host: values read back, shapes that depend on data, calls
  of Python functions. (Copies from host memory are refused too, but on a CPU all memory is the host's.)
* A replay reads and writes the addresses of the capture, whatever its owner has put elsewhere since.
* Host lengths are baked in, and only an update changes them. A recorded call waits for a word that an
  update writes and the call clears. A replay without an update therefore blocks for ever; on a CANN
  without value waits it computes with the old lengths (``value_wait=False``).
* Results lie in the graph's own memory: undefined (NaN) before the first replay, overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from .errors import WOULD_BLOCK, CaptureError, ReplayError
from .interface import Record, as_tuple, body_arguments, pinned, require_tensor_outputs
from .split import Split
from .update_plan import Update, UpdateCheck

_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "ascend_fia::host_lengths")


class CpuGraphRuntime:
    """The simulation. ``value_wait`` says whether the simulated CANN has value waits."""

    def __init__(self, value_wait: bool = True) -> None:
        self.value_wait = value_wait

    def capture(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> CpuGraph:
        return CpuGraph(split, args, updates, self.value_wait)

    def fence(self) -> None:
        """CPU kernels run in the caller's thread: there is nothing to wait for."""

    def eager(self, split: Split, args: Sequence[Any], updates: Sequence[Update]) -> tuple[Any, ...]:
        return as_tuple(split.body(*body_arguments(args, updates)))


class CpuGraph:
    """A captured graph of the simulation; see :class:`~npu_compile.runtime.interface.CapturedGraph`."""

    def __init__(
        self, split: Split, args: Sequence[Any], updates: Sequence[Update], value_wait: bool
    ) -> None:
        self._ops = [row.op for row in split.plan.rows]
        self._body: fx.GraphModule | None = split.body
        self._args = pinned(args)
        self._updates: Sequence[Update] = [dict(update) for update in updates]
        self._check = UpdateCheck(self._updates)
        self._value_wait = value_wait
        self._updated = not updates
        self.outputs = _trace_outputs(split.body, self._args, updates)

    @property
    def waits(self) -> bool:
        return bool(self._ops)

    @property
    def records(self) -> list[Record]:
        return [Record(op, update) for op, update in zip(self._ops, self._per_record(), strict=True)]

    def update(self, updates: Sequence[Update]) -> None:
        self._check(updates)
        self._updates = list(updates)
        self._updated = True

    def replay(self) -> None:
        if self._body is None:
            raise ReplayError("the graph was reset; capture it again")
        if not self._updated and self._value_wait:
            raise ReplayError(WOULD_BLOCK)
        self._updated = not self._ops
        results = as_tuple(self._body(*body_arguments(self._args, self._per_record())))
        for output, result in zip(self.outputs, results, strict=True):
            if isinstance(output, Tensor) and output.data_ptr() != result.data_ptr():
                output.copy_(result)

    def _per_record(self) -> Sequence[Update]:
        return list(self._updates) * len(self._ops) if len(self._updates) == 1 else self._updates

    def reset(self) -> None:
        self._body, self._args, self.outputs, self._updates, self._ops = None, [], (), [], []


def _trace_outputs(body: fx.GraphModule, args: Sequence[Any], updates: Sequence[Update]) -> tuple[Any, ...]:
    """Buffers for the body's results, found without running it; a view of an argument stays one."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args]
    with mode:
        results = as_tuple(_CaptureCheck(body).run(*body_arguments(fakes, updates)))
    require_tensor_outputs(results)
    owners = {
        (fake.untyped_storage()._cdata, fake.dtype): arg
        for fake, arg in zip(fakes, args, strict=True)
        if isinstance(fake, Tensor)
    }
    return tuple(_buffer(result, owners) for result in results)


def _buffer(result: Any, owners: dict[tuple[int, torch.dtype], Tensor]) -> Any:
    """The memory of a result: that of its owner, which is new where no argument or other result is."""
    if not isinstance(result, Tensor):
        return result
    key = result.untyped_storage()._cdata, result.dtype
    if key not in owners:
        elements = result.untyped_storage().nbytes() // result.itemsize
        owners[key] = torch.empty(elements, dtype=result.dtype)
        if result.dtype.is_floating_point:
            owners[key].fill_(float("nan"))
    return owners[key].as_strided(result.size(), result.stride(), result.storage_offset())


class _CaptureCheck(fx.Interpreter):
    """Propagates fake values through a body and refuses what a capture refuses."""

    def run_node(self, n: fx.Node) -> Any:
        self._check(n)
        try:
            return super().run_node(n)
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(
                f"{n.target} can't be captured: {type(error).__name__}: {error}", n.name
            ) from error

    def _check(self, n: fx.Node) -> None:
        if isinstance(n.target, OpOverload) and n.target._schema.name in _READS:
            raise CaptureError(f"{n.target} reads a value on the host, which waits for the device", n.name)
