"""How one operator's calls are checked: its arguments, how they are read, and the rules in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..schemas import SCHEMAS
from ..targets import Target
from .rule import Rule

Rules = tuple[Rule, ...]


@dataclass(frozen=True)
class Spec:
    """``read`` makes the call that ``stages`` look at, of facts; ``read_values`` the one of ``value_rules``.

    A stage may rely on the rules of the stages before it, and is skipped when one of them is broken.
    """

    op: str
    read: Callable[[Mapping[str, Any]], Any]
    stages: tuple[Rules, ...]
    read_values: Callable[[Any, Mapping[str, Any]], Any] = lambda call, arguments: None
    value_rules: Rules = ()
    lengths: frozenset[str] = frozenset()
    """Arguments that are lists of sequence lengths, whose values are not facts."""
    defaults: Mapping[str, Any] = field(init=False)
    required: frozenset[str] = field(init=False)
    tensors: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        arguments = torch._C.parse_schema(SCHEMAS[self.op]).arguments
        kinds = {a.name: str(a.type) for a in arguments}
        optional = {
            a.name for a in arguments if a.has_default_value() or kinds[a.name].startswith("Optional")
        }
        defaults = {a.name: a.default_value for a in arguments if a.name in optional}
        tensors = {name for name, kind in kinds.items() if kind in ("Tensor", "Optional[Tensor]")}
        object.__setattr__(self, "defaults", defaults)
        object.__setattr__(self, "required", frozenset(kinds) - optional)
        object.__setattr__(self, "tensors", frozenset(tensors))

    def rules(self) -> Rules:
        """All rules, in the order in which they are looked at."""
        return tuple(rule for stage in self.stages for rule in stage) + self.value_rules

    def for_target(self, target: Target) -> tuple[tuple[Rules, ...], Rules]:
        """The stages and value rules that hold on ``target``."""
        stages = tuple(tuple(r for r in stage if target in r.targets) for stage in self.stages)
        return stages, tuple(r for r in self.value_rules if target in r.targets)
