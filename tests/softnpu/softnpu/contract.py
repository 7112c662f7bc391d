"""What the simulated machine's operators refuse: the project's contract for an ascend910b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu_compile.kernels.contract.check import require
from npu_compile.kernels.contract.table import SPECS
from npu_compile.kernels.targets import Target

from .aten import find

TARGET = Target.ASCEND910B


def checker(name: str) -> Callable[..., None] | None:
    """Refuses arguments of npu::``name`` as :func:`require` does; None for an operator without a contract."""
    op = find(f"npu::{name}")
    if name not in SPECS or op is None:
        return None
    order = [argument.name for argument in op._schema.arguments]

    def check(*args: Any, workspace: Any = None, out: Any = None, **kwargs: Any) -> None:
        require(name, {**dict(zip(order, args, strict=False)), **kwargs}, TARGET)

    return check
