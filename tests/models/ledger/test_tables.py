"""Entries by type name types and cases that there are: a misspelled one would be silently without use."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from transformers import CONFIG_MAPPING

from tests.models.ledger.calls import CALLS
from tests.models.ledger.cases import CASES
from tests.models.ledger.classes import WHOLE
from tests.models.ledger.habits import IMAGES_AT_EACH_STEP, INAPPLICABLE, OWN_CACHES, TAKE_ALL_TOKENS
from tests.models.ledger.overrides import DEFAULTS, OVERRIDES


@pytest.mark.parametrize(
    "names",
    [CALLS, WHOLE, IMAGES_AT_EACH_STEP, INAPPLICABLE, OWN_CACHES, TAKE_ALL_TOKENS, DEFAULTS, OVERRIDES],
)
def test_types_exist(names: Collection[str]) -> None:
    assert set(names) <= set(CONFIG_MAPPING)


def test_cases_exist() -> None:
    assert {case for cases in INAPPLICABLE.values() for case in cases} <= set(CASES)
