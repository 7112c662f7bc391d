"""The kinds of value an option can have: what is allowed, in words and as a check."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


class Kind(Protocol):
    """``allowed`` completes "allowed: ..."; ``accept`` returns the value to keep or raises ValueError."""

    @property
    def allowed(self) -> str: ...

    def accept(self, value: object) -> Any: ...


@dataclass(frozen=True)
class Flag:
    """True or False; 0 and 1 are not taken for them."""

    allowed: str = "True or False"

    def accept(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"{type(value).__name__} is not a bool")
        return value


@dataclass(frozen=True)
class Choice:
    """One of some strings, or a member of ``enum`` by value; None too where it is ``optional``."""

    names: tuple[str, ...]
    enum: type[Enum] | None = None
    optional: bool = False

    @classmethod
    def of(cls, enum: type[Enum], optional: bool = False) -> Choice:
        return cls(tuple(str(member.value) for member in enum), enum, optional)

    @property
    def allowed(self) -> str:
        return ", ".join((["None"] if self.optional else []) + [repr(name) for name in self.names])

    def accept(self, value: object) -> Any:
        if value is None and self.optional:
            return None
        name = value.value if isinstance(value, Enum) else value
        if name not in self.names:
            raise ValueError("not one of them" + did_you_mean(name, self.names))
        return self.enum(name) if self.enum else name


@dataclass(frozen=True)
class Sizes:
    """Some positive ints, in any order, or None; kept as a sorted tuple without repetitions."""

    allowed: str = "None or a sequence of ints of at least 1"

    def accept(self, value: object) -> tuple[int, ...] | None:
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise ValueError(f"{type(value).__name__} is not a sequence of ints with something in it")
        bad = [size for size in value if not isinstance(size, int) or isinstance(size, bool) or size < 1]
        if bad:
            raise ValueError(f"{bad[0]!r} is not an int of at least 1")
        return tuple(sorted(set(value)))


@dataclass(frozen=True)
class Count:
    """A positive int."""

    allowed: str = "an int of at least 1"

    def accept(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{value!r} is not an int of at least 1")
        return value


@dataclass(frozen=True)
class TorchBackend:
    """The name of another torch.compile backend that is registered here."""

    allowed: str = "the name of a registered torch.compile backend, except 'ascend_fia'"

    def accept(self, value: object) -> str:
        from torch._dynamo.backends.registry import list_backends

        names = [name for name in list_backends(exclude_tags=()) if name != "ascend_fia"]
        if not isinstance(value, str):
            raise ValueError(f"{type(value).__name__} is not a str")
        if value not in names:
            raise ValueError("no such backend" + did_you_mean(value, names))
        return value


def did_you_mean(word: object, known: Collection[str]) -> str:
    """``" (did you mean 'capture'?)"``, or nothing where no known word is near."""
    near = difflib.get_close_matches(str(word), known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
