"""The pinned data is what measuring gives: a representative dozen by default, every type nightly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.models.ledger import page
from tests.models.ledger.data import Ledger, Record, power_of_ten
from tests.models.ledger.measure import TOLERANCE, measure

LEDGER = Ledger()
REPRESENTATIVE = (
    *("bloom", "cohere", "dinov2", "gemma2", "gpt_oss", "granite", "llama4_text"),
    *("m2m_100", "siglip_vision_model", "swin", "xlnet", "deberta"),
)
"""Types that tests/models/test_families_* leave out, each with a spelling of its own."""


def known(model_type: str, attention: str) -> list[Record]:
    """The pinned records of a type with one attention implementation, in the order of the cases."""
    return list(LEDGER.of(model_type, attention).values())


def attentions(model_type: str) -> list[str]:
    return sorted({key[1] for key in LEDGER.records if key[0] == model_type})


def runs(types: Iterator[str] | tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(model_type, attention, id=f"{model_type}-{attention}")
        for model_type in types
        for attention in attentions(model_type)
    ]


def measured(model_type: str, attention: str, cases: list[str]) -> dict[str, str]:
    """Records as the file has them, by case."""
    found = measure(model_type, attention, cases, baseline=False)
    return {record.case: record.to_json() for record in found}


def check(model_type: str, attention: str, cases: list[str]) -> None:
    pinned = {record.case: record for record in known(model_type, attention)}
    for case, line in measured(model_type, attention, cases).items():
        assert _without_rounding(line) == _without_rounding(pinned[case].to_json())


def _without_rounding(line: str) -> dict[str, Any]:
    """A record but for its error below the tolerance, which differs from machine to machine, and what only
    a run of all cases or with a baseline knows."""
    values = json.loads(line)
    values.pop("eager_graphs", None)
    values.pop("without", None)
    if values.get("error", 0.0) <= TOLERANCE:
        values.pop("error", None)
    return values


@pytest.mark.parametrize("model_type", REPRESENTATIVE)
def test_representative_types(model_type: str) -> None:
    attention = "sdpa" if any(record.status == "built" for record in known(model_type, "sdpa")) else "eager"
    check(model_type, attention, ["prefill"])


@pytest.mark.nightly
@pytest.mark.parametrize(("model_type", "attention"), runs(tuple(sorted({key[0] for key in LEDGER.records}))))
def test_every_type(model_type: str, attention: str) -> None:
    cases = [record.case for record in known(model_type, attention) if record.case]
    check(model_type, attention, cases)


def test_nothing_is_wrong() -> None:
    """No output of the pinned run is off, and nothing was lowered that isn't attention."""
    wrong = [
        record.key
        for record in LEDGER.records.values()
        if record.status in ("mismatch", "raises")
        or record.surplus
        or record.error > TOLERANCE
        or not record.argmax
    ]
    assert wrong == []


def test_no_more_graphs_than_the_eager_backend() -> None:
    compared = [record for record in LEDGER.records.values() if record.eager_graphs]
    assert compared
    assert [record.key for record in compared if record.graphs > record.eager_graphs] == []


@pytest.mark.parametrize(("attention", "least"), [("sdpa", 0.97), ("eager", 0.95)])
def test_nearly_all_that_is_traced_is_lowered(attention: str, least: float) -> None:
    records = [record for record in LEDGER.records.values() if record.attention == attention]
    assert sum(record.lowered for record in records) >= least * sum(record.traced for record in records)


def test_counts_add_up() -> None:
    for record in LEDGER.records.values():
        left = sum(record.left.values())
        assert record.lowered == sum(record.rows.values())
        assert record.lowered + left + record.unlisted == record.traced + record.surplus, record.key


def test_the_page_is_made_from_the_data() -> None:
    assert page.PATH.read_text() == page.page(list(LEDGER.records.values()))


@pytest.mark.parametrize(
    ("error", "written"),
    [(3e-9, 1e-6), (1e-6, 1e-6), (1.1e-6, 1e-5), (9e-5, 1e-4), (2e-4, 1e-3), (float("inf"), 1e9)],
)
def test_errors_are_written_as_powers_of_ten(error: float, written: float) -> None:
    assert power_of_ten(error) == written
