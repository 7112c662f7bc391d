"""The terminal that reports are printed on."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 110
"""Columns where the output is no terminal."""


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
