"""Running one property on a few random calls, or on thousands of them by night."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

EXAMPLES = pytest.mark.parametrize("examples", [100, pytest.param(2000, marks=pytest.mark.nightly)])
"""A hundred random calls by default, two thousand by night."""


def for_all(strategy: SearchStrategy[Any], examples: int, check: Callable[[Any], None]) -> None:
    """Run ``check`` on ``examples`` values; every run draws the same ones, so that a failure stays."""

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(value: Any) -> None:
        check(value)

    run()
