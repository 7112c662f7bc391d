"""transformers' ``tp_plan``: which rule of tensor parallel each of a model's modules follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

COLUMN, ROW, LOOKED_UP = "colwise", "rowwise", "embedding_rowwise"
GATHERED = ("colwise_gather_output", "colwise_rep")
"""Column-wise, with a result that every rank has whole."""


def plan_of(model: Any) -> Mapping[str, str]:
    """The rules by patterns of module names; empty for a model without a plan."""
    return getattr(model, "tp_plan", None) or {}


def pattern_of(module: str) -> str:
    """What a plan calls a module: ``model.layers.3.mlp`` is ``model.layers.*.mlp``."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)
