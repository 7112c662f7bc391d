"""Context parallel: one batch's tokens, or one KV cache, over the ranks of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import ContextParallelModel, context_parallel
    from .tensor import tensor_parallel

__all__ = ["ContextParallelModel", "context_parallel", "tensor_parallel"]


def __getattr__(name: str) -> Any:
    """Models need transformers, which layouts and options don't."""
    if name == "tensor_parallel":
        from .tensor import tensor_parallel

        return tensor_parallel
    if name in __all__:
        from . import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
