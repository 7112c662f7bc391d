"""Make ``torch.ops.npu.*`` exist on every machine.

Where torch_npu is loaded its own definitions stay as they are, and only what it lacks is added: a
checked implementation for CPU tensors, and fakes for the few operators it has none for. Elsewhere the same
schemas are defined here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from .contract import SPECS, require
from .fakes import FAKES
from .schemas import SCHEMAS
from .targets import Target

NAMESPACE = "npu"

_libraries: list[Library] = []
"""Holds the registrations for as long as the process lives: a Library undoes its own when it dies."""


def ensure_npu_ops() -> None:
    """Define and implement what is missing of ``torch.ops.npu``; does nothing the second time.

    torch_npu is imported first where it is installed, since two libraries can't define the same
    operator. Normally ``import torch`` has done that already; it hasn't where
    TORCH_DEVICE_BACKEND_AUTOLOAD=0.
    """
    if _libraries:
        return
    if "torch_npu" not in sys.modules and importlib.util.find_spec("torch_npu") is not None:
        with contextlib.suppress(ImportError, OSError, RuntimeError):  # installed without CANN
            importlib.import_module("torch_npu")
    library = Library(NAMESPACE, "FRAGMENT")
    _libraries.append(library)
    for name, schema in SCHEMAS.items():
        qualified = f"{NAMESPACE}::{name}"
        if not _defined(name):
            library.define(schema, tags=torch.Tag.pt2_compliant_tag)
        if not torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "Meta"):
            library.impl(name, FAKES[name], "Meta")
        library.impl(name, _cpu_kernel(name), "CPU")


def _defined(name: str) -> bool:
    packet, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(f"{NAMESPACE}::{packet}")
    return any(schema.overload_name == overload for schema in schemas)


def _cpu_kernel(name: str) -> Callable[..., Any]:
    """The operator's function in kernels.cpu, looked up at the first call and called only if that is legal.

    Raises, at the call, NotImplementedError for an operator that has no CPU kernel, and ContractError for
    arguments that break a rule of the operator; nothing is computed or written then.
    """
    positional = tuple(a.name for a in torch._C.parse_schema(SCHEMAS[name]).arguments if not a.kwarg_only)
    checked = name in SPECS
    function: Callable[..., Any] | None = None

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal function
        if function is None:
            function = _load(name)
        if checked:
            require(name, dict(zip(positional, args, strict=False)) | kwargs, Target.CPU)
        return function(*args, **kwargs)

    return kernel


def _load(name: str) -> Callable[..., Any]:
    table: dict[str, str] = getattr(importlib.import_module(".cpu", __package__), "CPU_KERNELS", {})
    if name not in table:
        raise NotImplementedError(f"npu::{name} has no CPU kernel")
    module, _, attribute = table[name].partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module, __package__), attribute)
    return function
