"""Load the software CANN, then torch and torch_npu on top of it."""

from __future__ import annotations

import ctypes
import os
import sys

EMPTY = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb")


def load() -> ctypes.CDLL:
    """The software runtime, loaded globally: torch_npu finds its symbols there.

    ``SOFTNPU_LIB`` names the folder that cann/build.sh wrote. Raises ImportError after torch_npu.
    """
    if "torch_npu" in sys.modules:
        raise ImportError("import softnpu before torch: torch_npu must find the software CANN")
    folder = os.environ.get("SOFTNPU_LIB")
    if not folder:
        raise ImportError(
            "set SOFTNPU_LIB to the folder with the software CANN libraries (`make test-npu` does)"
        )
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")  # torch_npu launches from the calling thread
    os.environ.setdefault("TORCH_NPU_DISABLE_TE", "1")
    runtime = ctypes.CDLL(f"{folder}/libascendcl.so", mode=ctypes.RTLD_GLOBAL)
    for name in EMPTY:
        ctypes.CDLL(f"{folder}/lib{name}.so", mode=ctypes.RTLD_GLOBAL)
    runtime.soft_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p]
    runtime.soft_is_capturing.argtypes = [ctypes.c_void_p]
    runtime.soft_fail_capture.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    runtime.soft_used.restype = ctypes.c_size_t
    runtime.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return runtime


RUNTIME = load()
