"""Print all rules as a Markdown table: ``python -m npu_compile.kernels.contract``."""

from __future__ import annotations

from collections.abc import Iterator

from ..targets import Target
from .rule import DEVICES
from .table import SPECS

GENERAL = (
    ("arguments.unknown", "any", "the operator has such an argument"),
    ("arguments.required", "any", "arguments without a default are given"),
    ("arguments.tensor", "any", "a tensor is a tensor"),
)


def table() -> Iterator[str]:
    """Lines of the table: each rule once, with the test that breaks it."""
    yield "| rule | argument | what it asks for | where | source | test |"
    yield "|---|---|---|---|---|---|"
    for rule_id, argument, text in GENERAL:
        test = "`test_unknown_arguments_and_operators`"
        yield f"| `{rule_id}` | {argument} | {text} | * | torch_npu's schema | {test} |"
    rules = {rule.id: rule for spec in SPECS.values() for rule in spec.rules()}
    for rule in rules.values():
        instead = f"; instead: {rule.instead}" if rule.instead else ""
        yield (
            f"| `{rule.id}` | `{rule.argument}` | {rule.text}{instead} | {_where(rule.targets)} "
            f"| {rule.source} | `test_refuses[{rule.id}]` |"
        )


def _where(targets: frozenset[Target]) -> str:
    if targets == frozenset(Target):
        return "*"
    if targets == DEVICES:
        return "devices"
    return ", ".join(sorted(target.value for target in targets))


if __name__ == "__main__":
    print("\n".join(table()))
