"""The ledger's data: one line a record, sorted, without times, so that two runs can be diffed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "coverage.jsonl"
ORDER = ("", "prefill", "padded", "static_decode", "dynamic_decode", "chunked_prefill", "beam_reorder")
ATTENTIONS = ("sdpa", "eager", "flex_attention")
Key = tuple[str, str, str]


@dataclass
class Record:
    """A type with an attention implementation: how it was built (``case`` empty), or what a case gave.

    ``without``: cases that the model has no use for.
    ``counted`` attention computations in the plain run, ``fused`` of them through torch's own operator;
    ``traced``: those in graphs of dynamo, each graph once, but for ``unused`` ones, whose results reach
    neither what a graph returns nor a tensor that it was given (dead code, which a compiler removes);
    ``outside``: those of the run that were in no graph; ``lowered``, ``left`` by reason and ``unlisted`` add
    up to ``traced``; ``surplus``: lowered, but not counted. ``where``: the lines that what is left comes
    from. ``rows``: what was lowered to, by operator, layout, sparse mode and mask.
    ``graphs`` and ``eager_graphs``: of ours and of backend="eager"; 0 where that was not run.
    """

    type: str
    attention: str
    case: str
    status: str = "ok"
    detail: str = ""
    model: str = ""
    size: str = ""
    inputs: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    counted: int = 0
    fused: int = 0
    traced: int = 0
    unused: int = 0
    outside: int = 0
    lowered: int = 0
    unlisted: int = 0
    surplus: int = 0
    left: dict[str, int] = field(default_factory=dict)
    where: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    error: float = 0.0
    argmax: bool = True
    graphs: int = 0
    eager_graphs: int = 0

    @property
    def key(self) -> Key:
        return self.type, self.attention, self.case

    @property
    def failing(self) -> bool:
        """Something is to be mended or explained."""
        return self.status not in ("ok", "built", "unsupported") or bool(
            self.left or self.unlisted or self.surplus
        )

    def to_json(self) -> str:
        """Fields that say nothing are left out; an error is its power of ten from above."""
        plain = {item.name: item.default for item in dataclasses.fields(self)}
        values: dict[str, Any] = {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value != plain[name] and value not in ({}, [])
        }
        if self.error:
            values["error"] = power_of_ten(self.error)
        return json.dumps({**values, "case": self.case}, sort_keys=False, ensure_ascii=False)


def power_of_ten(error: float) -> float:
    """The smallest power of ten that is no less; 1e-6 for anything smaller."""
    if not math.isfinite(error):
        return 1e9
    return max(1e-6, float(f"1e{math.ceil(math.log10(error) - 1e-9)}"))


class Ledger:
    """All records, in a file that is whole after each change."""

    def __init__(self, path: Path = PATH) -> None:
        self.path = path
        self.records: dict[Key, Record] = {}
        if path.exists():
            lines = path.read_text().splitlines()
            self.records = {record.key: record for record in (Record(**json.loads(line)) for line in lines)}

    def of(self, model_type: str, attention: str) -> dict[str, Record]:
        """The records of a type with one attention implementation, by case."""
        keys = [(model_type, attention, case) for case in ORDER]
        return {key[2]: self.records[key] for key in keys if key in self.records}

    def find(self, model_type: str, attention: str, case: str) -> Record | None:
        """The record that says what became of a case: its own, or why there is none."""
        others = [self.records.get((model_type, other, "")) for other in ATTENTIONS]
        if (unbuilt := next((r for r in others if r and r.status == "not built"), None)) is not None:
            return unbuilt
        whole = self.records.get((model_type, attention, ""))
        if whole is not None and (whole.status != "built" or case in whole.without):
            return whole
        return self.records.get((model_type, attention, case))

    def replace(self, model_type: str, cases: Mapping[str, Sequence[str]], records: Iterable[Record]) -> None:
        """Put ``records`` in the place of all that is known of these cases of a type, and save."""
        whole = {}
        for attention, names in cases.items():
            for case in ("", *names) if names else ():
                record = self.records.pop((model_type, attention, case), None)
                whole[attention] = record if case == "" else whole[attention]
        for record in records:
            self.records[record.key] = record
            if record.case == "" and (before := whole.get(record.attention)) is not None:
                kept = set(before.without) - set(cases[record.attention])
                record.without = sorted({*record.without, *kept})
        self._save()

    def _save(self) -> None:
        lines = [self.records[key].to_json() for key in sorted(self.records, key=_order)]
        temporary = self.path.with_suffix(".new")
        temporary.write_text("".join(f"{line}\n" for line in lines))
        os.replace(temporary, self.path)


def _order(key: Key) -> tuple[str, str, int]:
    return key[0], key[1], ORDER.index(key[2])
