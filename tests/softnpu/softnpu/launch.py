"""Put a Python function on an NPU stream: run now, queued, recorded or part of an update, as it says."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch_npu
from torch.utils._python_dispatch import _disable_current_modes

from .libraries import RUNTIME

_RUN, _RELEASE = 0, 1
_functions: dict[int, Callable[[], object]] = {}
_ids = itertools.count(1)
_errors: list[BaseException] = []

launched: list[str] = []
"""Names of the kernels launched, including those a capture records and an update launches again; a replay
adds none. Noted while :data:`recording` holds True."""
recording = [False]


@ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int)
def _callback(identity: int, what: int) -> None:
    if what == _RELEASE:
        _functions.pop(identity, None)
        return
    # Some modes are kept per process, not per thread: those of a thread that traces are left alone.
    modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
    try:
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad(), modes:
            _functions[identity]()
    except BaseException as error:
        _errors.append(error)  # raised by the next launch: the function may run long after its own


RUNTIME.soft_set_callback(_callback)


def current_stream(device: int | None = None) -> int:
    return torch_npu._C._npu_getCurrentRawStream(torch_npu._C._npu_getDevice() if device is None else device)


def capturing(device: int | None = None) -> bool:
    return bool(RUNTIME.soft_is_capturing(current_stream(device)))


def fail_capture(reason: str, device: int | None = None) -> None:
    """Invalidate the capture of the current stream, as a kernel that needs the host does."""
    RUNTIME.soft_fail_capture(current_stream(device), 107030, reason.encode())


def launch(function: Callable[[], object], name: str, device: int | None = None) -> None:
    """Put ``function`` on the current stream. Raises what a kernel that has run by now has raised."""
    identity = next(_ids)
    _functions[identity] = function
    if recording[0]:
        launched.append(name)
    code = RUNTIME.soft_launch(current_stream(device), identity, name.encode())
    if _errors:
        error = _errors[0]
        _errors.clear()
        raise error
    if code:
        message = (RUNTIME.aclGetRecentErrMsg() or b"").decode()
        raise RuntimeError(f"softnpu: launch of {name} failed, error code is {code}: {message}")


def synchronise(device: int | None = None) -> None:
    """Block the host on the current stream; in a capture this is the error that the hardware gives."""
    torch.npu.current_stream(device).synchronize()
