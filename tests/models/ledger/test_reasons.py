"""Every reason in the data is explained, by lines that are in the installed transformers as quoted."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from tests.models.ledger.data import Ledger
from tests.models.ledger.reasons import REASONS, Line

MODELS = Path(transformers.__file__).parent / "models"
LINES = [line for found in REASONS.values() for because in found for line in because.lines]


@pytest.mark.parametrize("line", LINES, ids=str)
def test_lines_say_so(line: Line) -> None:
    source = (MODELS / line.model / f"modeling_{line.model}.py").read_text().splitlines()
    assert line.text in source[line.number - 1]


def test_the_reasons_in_the_data_are_those_explained() -> None:
    assert {reason for record in Ledger().records.values() for reason in record.left} == REASONS.keys()
