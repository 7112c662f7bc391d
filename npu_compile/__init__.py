"""A torch.compile backend that runs the attention of unmodified models on Ascend's fused operators.

Nothing needs importing to use it: ``torch.compile(model, backend="ascend_fia")``. What is here
tells what the backend did: :func:`explain`, :func:`last_report`, or would do: :func:`plan`. Importing
this package imports nothing else (``npu-compile doctor`` works where ``import torch`` fails), but where
torch is imported, before or after, ``torch.ops.npu`` and ``torch.ops.ascend_fia`` have their operators.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .after_torch import after_torch

if TYPE_CHECKING:
    from .errors import AscendFiaError
    from .explainer import explain
    from .kv_quant.calibrate import calibrate_kv
    from .options import Options
    from .planning.planner import plan
    from .planning.result import Plan
    from .report import GraphReport, Report
    from .report_log import last_report

__all__ = [
    "AscendFiaError",
    "GraphReport",
    "Options",
    "Plan",
    "Report",
    "calibrate_kv",
    "explain",
    "last_report",
    "plan",
]

_HOME = {
    "AscendFiaError": "errors",
    "GraphReport": "report",
    "Options": "options",
    "Plan": "planning.result",
    "Report": "report",
    "calibrate_kv": "kv_quant.calibrate",
    "explain": "explainer",
    "last_report": "report_log",
    "plan": "planning.planner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _define_operators() -> None:
    import_module(".kernels.graph_ops", __name__).ensure_graph_ops()


after_torch(_define_operators, needs=f"{__name__}.kernels")
