"""The update plan: what each recorded operator of a captured graph is given before a replay.

A captured graph holds one record per fused attention call, in call order. Lengths given to the call as
host lists are baked in; an update gives every record its new lists. The plan says, per record and key,
which of the step's length lists that is. It is derived from the lowered graph node by node, so layers of
different kinds (FIA v1 and v2, sliding and full) each get their own keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import UpdateError

Lengths = list[int]
Update = dict[str, Lengths]


@dataclass(frozen=True)
class UpdateRow:
    """One record. ``sources`` maps each length argument to the index of a length list of the step.

    ``op`` is torch_npu's name of the operator, ``node`` the name of the call in the lowered graph and
    ``module_path`` the module it comes from, where that is known.
    """

    op: str
    node: str
    sources: Mapping[str, int]
    module_path: str = ""


@dataclass(frozen=True)
class UpdatePlan:
    """The rows in call order, and a name in words for each length list they draw on.

    There is a row for every fused call, also for one without lengths: the captured call waits for its
    update all the same. A graph whose operators take their lengths as tensors has no rows.
    """

    rows: tuple[UpdateRow, ...] = ()
    lengths: tuple[str, ...] = ()

    def resolve(self, lengths: Sequence[Lengths]) -> list[Update]:
        """One update per record, from the step's length lists."""
        return [_resolve(row, lengths) for row in self.rows]

    def updates(self, lengths: Sequence[Lengths]) -> list[Update]:
        """The same, as a single update for all records where they share their keys and sources."""
        rows = self.rows[:1] if self._uniform else self.rows
        return [_resolve(row, lengths) for row in rows]

    @cached_property
    def _uniform(self) -> bool:
        return all(row.sources == self.rows[0].sources for row in self.rows)

    def as_torch_npu(self) -> list[dict[str, Any]]:
        """The plan in the format of torch_npu's own graph updates, with length lists as its inputs."""
        return [
            {
                "op": row.op,
                "updates": {key: {"kind": "input", "index": index} for key, index in row.sources.items()},
            }
            for row in self.rows
        ]

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """Rows for a report: record, operator, call, key, source; a call without lengths has one row too."""
        return [
            (str(record), row.op, row.module_path or row.node, key, source)
            for record, row in enumerate(self.rows)
            for key, source in ([(key, self.lengths[i]) for key, i in row.sources.items()] or [("", "")])
        ]


def _resolve(row: UpdateRow, lengths: Sequence[Lengths]) -> Update:
    return {key: lengths[source] for key, source in row.sources.items()}


class UpdateCheck:
    """Checks updates against ``records``: per record, the lengths that it was captured with.

    An update must have the record's keys, neither more nor fewer: torch_npu ignores a key that the recorded
    call lacks and keeps the old value for a key that the update lacks, and either means attending to the
    wrong keys.
    """

    def __init__(self, records: Sequence[Update]) -> None:
        self._forms = [{key: len(lengths) for key, lengths in record.items()} for record in records]
        distinct = {tuple(sorted(form.items())): index for index, form in reversed([*enumerate(self._forms)])}
        self._first_of_each_form = sorted(distinct.values())

    def __call__(self, updates: Sequence[Update]) -> None:
        """Raise :class:`UpdateError` unless there is one fitting update for all records, or one for each."""
        if len(updates) == 1:
            for record in self._first_of_each_form:
                self._check(record, updates[0])
        elif len(updates) != len(self._forms):
            raise UpdateError(
                f"{len(updates)} updates were given for {len(self._forms)} records; give one update for all "
                "records or exactly one for each"
            )
        else:
            for record, update in enumerate(updates):
                self._check(record, update)

    def _check(self, record: int, update: Update) -> None:
        form = self._forms[record]
        if update.keys() != form.keys():
            raise UpdateError(
                f"the update of record {record} has the keys {sorted(update)}; the recorded call takes "
                f"{sorted(form)}"
            )
        for key, count in form.items():
            lengths = update[key]
            if type(lengths) is not list or len(lengths) != count:
                raise UpdateError(
                    f"record {record}: {key}={lengths!r} must be a list of {count} ints, as many as were "
                    "captured"
                )
