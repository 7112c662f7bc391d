"""Check a call against its operator's rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..targets import Target
from .facts import TensorFacts, facts
from .rule import META, ContractError, Rule, Violation
from .spec import Spec
from .table import SPECS

KNOWN_CALLS = 4096
"""Calls of different form whose verdict is remembered. Facts are kept, never tensors."""

PLAIN = (int, str, float, bool, type(None))

_verdicts: dict[Any, tuple[Any, tuple[Violation, ...]]] = {}


def check(op: str, args: Mapping[str, Any], target: Target | str) -> list[Violation]:
    """Rules that calling ``npu::op`` with ``args`` would break on ``target``, empty when legal.

    ``args`` maps argument names to tensors (real, fake or meta), lists, tensors of sequence lengths, and
    scalars; what is left out has its default. Sizes may be symbolic, and are not guarded on: a rule is
    broken only when that is certain. Rules on the values of lengths and block ids are skipped where the
    values aren't in host memory.

    Raises KeyError for an operator that has no contract, ValueError for an unknown target.
    """
    if type(target) is not Target:
        target = Target(target)
    spec = SPECS[op]
    lengths = spec.lengths
    given = tuple(
        [
            (name, value if type(value) in PLAIN else facts(value, name in lengths))
            for name, value in args.items()
        ]
    )
    key = (op, target, given)
    try:
        verdict = _verdicts.get(key)
    except TypeError:  # a symbolic size has no hash: the verdict is for this trace only
        call, violations = _verdict(spec, dict(given), target)
    else:
        if verdict is None:
            if len(_verdicts) >= KNOWN_CALLS:
                _verdicts.clear()
            verdict = _verdicts[key] = _verdict(spec, dict(given), target)
        call, violations = verdict
    if violations:
        return list(violations)
    values = spec.read_values(call, args)
    return [rule.violation(values) for rule in _rules(op, target)[1] if rule.breaks(values) is not None]


def require(op: str, args: Mapping[str, Any], target: Target | str) -> None:
    """Raise ContractError, naming every argument, value and rule, unless the call is legal on ``target``."""
    violations = check(op, args, target)
    if violations:
        raise ContractError(op, Target(target), violations)


@lru_cache
def _rules(op: str, target: Target) -> tuple[tuple[tuple[Rule, ...], ...], tuple[Rule, ...]]:
    return SPECS[op].for_target(target)


def _verdict(spec: Spec, given: Mapping[str, Any], target: Target) -> tuple[Any, tuple[Violation, ...]]:
    wrong = _bad_arguments(spec, given)
    if wrong:
        return None, wrong
    call = spec.read({**spec.defaults, **given})
    for stage in _rules(spec.op, target)[0]:
        found = tuple(rule.violation(call) for rule in stage if rule.breaks(call) is not None)
        if found:
            return call, found
    return call, ()


def _bad_arguments(spec: Spec, given: Mapping[str, Any]) -> tuple[Violation, ...]:
    """Arguments that the operator doesn't have, that are missing, or that aren't tensors."""

    def wrong(name: str, value: Any, what: str, rule_id: str) -> Violation:
        return Violation(name, value, f"npu::{spec.op} {what}", META, rule_id)

    known = spec.required | spec.defaults.keys()
    found = [
        wrong(n, v, "has no such argument", "arguments.unknown") for n, v in given.items() if n not in known
    ]
    missing = sorted(name for name in spec.required if given.get(name) is None)
    found += [wrong(name, "missing", "needs it", "arguments.required") for name in missing]
    found += [
        wrong(n, v, "takes a tensor", "arguments.tensor")
        for n, v in given.items()
        if n in spec.tensors and v is not None and not isinstance(v, TensorFacts)
    ]
    return tuple(found)
