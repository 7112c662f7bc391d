"""What a model's forward calls its key/value cache, which changed between releases of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def cache_argument(forward: Callable[..., Any]) -> str:
    """``"cache"`` where ``forward`` has it (transformers 5.24), else ``"past_key_values"``."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"
