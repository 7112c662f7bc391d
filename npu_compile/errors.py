"""What is raised when a caller's argument is wrong."""

from __future__ import annotations

import reprlib


class AscendFiaError(ValueError):
    """A caller's argument is wrong: names the argument, its value and the rule it breaks.

    Attributes are ``argument`` (as the caller wrote it, e.g. ``options['target']``), ``value``
    and ``rule`` (a sentence: what is allowed).
    """

    def __init__(self, argument: str, value: object, rule: str) -> None:
        super().__init__(argument, value, rule)
        self.argument = argument
        self.value = value
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.argument}={describe(self.value)}: {self.rule}"


def describe(value: object) -> str:
    """``value`` for a message: a tensor by dtype, shape and device, anything else by a short repr."""
    shape, dtype, device = (getattr(value, name, None) for name in ("shape", "dtype", "device"))
    if shape is None or dtype is None or device is None:
        return reprlib.repr(value)
    return f"Tensor({str(dtype).removeprefix('torch.')}, {tuple(shape)}, {device})"
