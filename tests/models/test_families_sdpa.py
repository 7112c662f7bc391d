"""The families with attn_implementation="sdpa" (a file of its own, so that workers share the load)."""

from __future__ import annotations

import pytest

from tests.models.cases import Case
from tests.models.family_run import check, runs
from tests.models.tiny import Family


@pytest.mark.parametrize(("family", "case"), runs("sdpa"))
def test_family(family: Family, case: Case) -> None:
    check(family, "sdpa", case)
