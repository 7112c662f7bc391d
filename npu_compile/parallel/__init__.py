"""Context parallel: one batch's tokens, or one KV cache, over the ranks of a group."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entry import context_parallel
    from .model import ContextParallelModel
    from .sharded_model import plain_model
    from .tensor import tensor_parallel

__all__ = ["ContextParallelModel", "context_parallel", "plain_model", "tensor_parallel"]

_HOMES = {
    "ContextParallelModel": ".model",
    "context_parallel": ".entry",
    "plain_model": ".sharded_model",
    "tensor_parallel": ".tensor",
}


def __getattr__(name: str) -> Any:
    """Models need transformers, which layouts and options don't."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
