"""Comparing our tables with what the real torch_npu says: each function lists the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .kinds import Kind, described, on_meta


def schema_differences(ours: Mapping[str, str], real: Mapping[str, str]) -> list[str]:
    """Operators whose schema isn't ``real``'s, which has them as torch prints them."""
    different = []
    for name, text in ours.items():
        try:
            mine = f"npu::{torch._C.parse_schema(text)}"
        except RuntimeError as error:
            mine = f"unparsable: {error}"
        if mine != real.get(name):
            different.append(f"{name}: ours {mine}, real {real.get(name)}")
    return different


def output_differences(
    kinds: Iterable[Kind], function: Callable[[str], Callable[..., Any]], real: Mapping[str, Any]
) -> list[str]:
    """Calls for which ``function(op)`` gives other shapes or dtypes than ``real`` has by the call's name."""
    different = []
    for kind in kinds:
        try:
            mine = described(function(kind.op)(**kind.args))
        except Exception as error:
            mine = f"{type(error).__name__}: {error}"
        if mine != real[kind.name]:
            different.append(f"{kind.op}, {kind.name}: ours {mine}, real {real[kind.name]}")
    return different


def without_data(kinds: Iterable[Kind]) -> list[Kind]:
    return [kind._replace(args=on_meta(kind.args)) for kind in kinds]
