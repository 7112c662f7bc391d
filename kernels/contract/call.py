"""A call as the rules of most operators read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .facts import TensorFacts, facts


class Call:
    """``arguments`` has all of the operator's arguments, defaults included, as facts."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.args = arguments

    def argument_name(self, name: str) -> str:
        return name

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def tensor(self, name: str) -> TensorFacts:
        """An argument that the schema says is a tensor."""
        tensor: TensorFacts = self.args[name]
        return tensor

    def optional(self, name: str) -> TensorFacts | None:
        tensor: TensorFacts | None = self.args.get(name)
        return tensor


class Values:
    """A call whose form is known to be right, with its arguments themselves."""

    def __init__(self, call: Call, arguments: Mapping[str, Any]) -> None:
        self.call = call
        self.args = arguments

    def argument_name(self, name: str) -> str:
        return name


def differing(call: Call, names: tuple[str, ...], of: str) -> str | None:
    """Names and values of the tensors given among ``names`` that differ in ``of`` (dtype, device, …)."""
    given = [(name, tensor) for name in names if (tensor := call.optional(name)) is not None]
    if len({getattr(tensor, of) for _, tensor in given}) <= 1:
        return None
    return ", ".join(f"{name} {tensor}" for name, tensor in given)


def strided(call: Call, names: tuple[str, ...]) -> str | None:
    """Names of the tensors among ``names`` that are certainly not contiguous."""
    found = [n for n in names if (t := call.optional(n)) is not None and not t.contiguous]
    return f"given with {', '.join(found)} not contiguous" if found else None


def shown(*values: Any) -> str:
    return " with ".join(str(facts(value)) for value in values)
