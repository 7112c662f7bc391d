"""What a rule is, and what breaking one looks like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..targets import Target

ALL = frozenset(Target)
DEVICES = ALL - {Target.CPU}
A2_A3 = frozenset({Target.ASCEND910B, Target.ASCEND910_93})
ASCEND950 = frozenset({Target.ASCEND950})
ASCEND310P = frozenset({Target.ASCEND310P})

DOCS = "op-plugin docs"
META = "torch_npu meta function"
VLLM_ASCEND = "vllm-ascend"


@dataclass(frozen=True)
class Violation:
    """One rule that a call breaks: which argument, its value, what the rule asks for and who says so.

    ``instead`` says what to emit where that isn't obvious from the rule.
    """

    argument: str
    value: Any
    rule: str
    source: str
    rule_id: str
    instead: str = ""

    def __str__(self) -> str:
        hint = f"; instead: {self.instead}" if self.instead else ""
        return f"{self.argument} is {self.value}, but {self.rule}{hint} [{self.rule_id}, {self.source}]"


@dataclass(frozen=True)
class Rule:
    """``breaks(call)`` gives None, or the value of ``argument`` that breaks the rule, as shown to a user."""

    id: str
    argument: str
    text: str
    source: str
    breaks: Callable[[Any], Any]
    targets: frozenset[Target] = ALL
    instead: str = ""

    def violation(self, call: Any) -> Violation:
        """What to tell of ``call``, which breaks this rule."""
        name = call.argument_name(self.argument)
        return Violation(name, self.breaks(call), self.text, self.source, self.id, self.instead)


def rule(
    id: str,
    argument: str,
    text: str,
    source: str = DOCS,
    targets: frozenset[Target] = ALL,
    instead: str = "",
) -> Callable[[Callable[[Any], Any]], Rule]:
    """Make a Rule of the function below it."""

    def make(breaks: Callable[[Any], Any]) -> Rule:
        return Rule(id, argument, text, source, breaks, targets, instead)

    return make


class ContractError(ValueError):
    """A call that its operator refuses; ``violations`` has all the reasons."""

    def __init__(self, op: str, target: Target, violations: list[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__(f"{op} on {target.value}: " + "; ".join(map(str, violations)))
