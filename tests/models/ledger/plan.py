"""What there is to measure, and how one process measures a type."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.models.ledger.data import Ledger, Record
from tests.models.ledger.measure import measure

SECONDS, SECONDS_A_CASE = 60.0, 45.0


@dataclass(frozen=True)
class Wanted:
    """What of the known is measured again: all, what has something left or wrong, or nothing."""

    again: bool = False
    only_failing: bool = False
    baseline: bool = False
    """Run backend="eager" beside ours where we have several graphs."""


@dataclass(frozen=True)
class Task:
    """The cases to measure of one type, by attention implementation."""

    type: str
    cases: Mapping[str, tuple[str, ...]]
    baseline: bool

    @property
    def seconds(self) -> float:
        """How long it may take."""
        return SECONDS + SECONDS_A_CASE * sum(map(len, self.cases.values()))


def plan(
    types: Collection[str], attentions: Sequence[str], cases: Sequence[str], ledger: Ledger, wanted: Wanted
) -> list[Task]:
    """The tasks in a shuffled but fixed order, so that a part of a run is a fair sample."""
    found = []
    for model_type in sorted(types, key=lambda name: hashlib.sha256(name.encode()).digest()):
        of_type = {
            attention: tuple(
                case for case in cases if _is_wanted(model_type, attention, case, ledger, wanted)
            )
            for attention in attentions
        }
        if any(of_type.values()):
            found.append(Task(model_type, of_type, wanted.baseline))
    return found


def _is_wanted(model_type: str, attention: str, case: str, ledger: Ledger, wanted: Wanted) -> bool:
    if wanted.again:
        return True
    record = ledger.find(model_type, attention, case)
    return record.failing if record is not None and wanted.only_failing else record is None


def work(task: Task) -> Iterator[Record]:
    """The records of a task. One implementation that can't be built stands for all."""
    warnings.simplefilter("ignore")
    for attention, cases in task.cases.items():
        if not cases:
            continue
        for record in measure(task.type, attention, cases, task.baseline):
            yield record
            if record.status == "not built":
                return


def ended_early(task: Task, done: Sequence[Record], trouble: str) -> Record:
    """The record of the case that was under way when a task's process ended."""
    known = {(record.attention, record.case) for record in done}
    planned = [(attention, case) for attention, cases in task.cases.items() if cases for case in ("", *cases)]
    attention, case = next((entry for entry in planned if entry not in known), planned[-1])
    return Record(task.type, attention, case, status="gave up", detail=trouble)
