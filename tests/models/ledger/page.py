"""docs/coverage.md, from the ledger's data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.models.ledger.data import ATTENTIONS, ORDER, Ledger, Record
from tests.models.ledger.reasons import REASONS

PATH = Path(__file__).parents[3] / "docs" / "coverage.md"
SHOWN_TYPES = 6

INTRODUCTION = """# Coverage

What becomes of the attention of each model type of transformers, made tiny from its configuration and run
on the CPU in float32. `make ledger` measures what is missing (`make ledger ARGS=--again` everything),
`tests/models/ledger/coverage.jsonl` holds the data, and this page is made from it.

*Counted* are the attention computations of the plain model's run, seen below the compiler by watching the
operators that run: torch's own fused ones, and a softmax over a product with a computed value whose result
goes into another. *Traced* are those in graphs that dynamo makes of it (each graph once, and without dead
code: what reaches neither a graph's outputs nor its inputs), *lowered* those that became a fused operator of
Ascend's, *unlisted* those that the report is silent about. *Outside* ran in no graph. An error is relative
to an output's largest value, at least 1.

The cases: `prefill` a forward; `padded` a batch whose first row is padded, on the left for decoders, on the
right for others; `static_decode` and `dynamic_decode` two steps on a cache of each kind;
`chunked_prefill` a prompt in two parts into a static cache; `beam_reorder` a step after the rows of a cache
have changed places.
"""


def write(ledger: Ledger, path: Path = PATH) -> None:
    path.write_text(page(list(ledger.records.values())))


def page(records: Sequence[Record]) -> str:
    runs = [record for record in records if record.case]
    parts = [
        INTRODUCTION,
        "## In total\n",
        *_totals(records, runs),
        "\n## Not lowered, and why\n",
        *_reasons(runs),
    ]
    parts += ["\n## Marked\n", *_faults(runs), "\n## By type\n", *_by_type(records)]
    parts += ["\n## Not built\n", *_not_built(records)]
    return "\n".join(parts) + "\n"


def _totals(records: Sequence[Record], runs: Sequence[Record]) -> Iterable[str]:
    built = {record.type for record in records if record.status == "built"}
    with_attention = {record.type for record in runs if record.counted}
    types = {record.type for record in records}
    yield f"{len(types)} types, {len(built)} built, {len(with_attention)} with attention.\n"
    yield "| attention | case | types | counted | outside | traced | lowered | | unlisted | largest error |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for attention in ATTENTIONS:
        for case in ORDER[1:]:
            rows = [run for run in runs if (run.attention, run.case) == (attention, case) and run.counted]
            if rows:
                yield _total_row(attention, case, rows)


def _total_row(attention: str, case: str, rows: Sequence[Record]) -> str:
    traced, lowered = sum(row.traced for row in rows), sum(row.lowered for row in rows)
    cells = [attention, case, len(rows), sum(row.counted for row in rows), sum(row.outside for row in rows)]
    cells += [traced, lowered, f"{100 * lowered / max(1, traced):.1f} %", sum(row.unlisted for row in rows)]
    right = [row.error for row in rows if row.status == "ok"]
    return _row([*cells, f"{max(right, default=0.0):.0e}"])


def _reasons(runs: Sequence[Record]) -> Iterable[str]:
    counts: Counter[str] = Counter()
    types: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        counts.update(run.left)
        for reason in run.left:
            types[reason].add(run.type)
    yield "Why a reason is true was read off the models: `model:line` is a line of transformers 5.24 in"
    yield "`models/<model>/modeling_<model>.py`.\n"
    yield "| attention computations | types | reason | such as | why |"
    yield "|--:|--:|---|---|---|"
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        shown = ", ".join(sorted(types[reason])[:SHOWN_TYPES])
        yield _row([count, len(types[reason]), reason, shown, "<br>".join(map(str, REASONS.get(reason, ())))])


def _faults(runs: Sequence[Record]) -> Iterable[str]:
    yield '*The eager backend differs* (or raises): so does backend="eager", from the plain model, and it is'
    yield "then what ours is compared with. A *mismatch* would be a fault of ours.\n"
    yield "| type | attention | case | what |"
    yield "|---|---|---|---|"
    for run in sorted(runs, key=lambda run: (run.status, run.type, run.attention)):
        what = [] if run.status == "ok" else [f"{run.status}: {run.detail}" if run.detail else run.status]
        what += [f"{run.unlisted} unlisted"] if run.unlisted else []
        what += [f"{run.surplus} lowered but not counted"] if run.surplus else []
        if run.eager_graphs and run.graphs > run.eager_graphs:
            what.append(f"{run.graphs} graphs, {run.eager_graphs} with backend eager")
        if what:
            yield _row([run.type, run.attention, run.case, "; ".join(what)])


def _by_type(records: Sequence[Record]) -> Iterable[str]:
    """A row a type; in a cell, lowered / traced."""
    columns = [(attention, case) for attention in ATTENTIONS for case in ORDER[1:]]
    found = {record.key: record for record in records}
    columns = [column for column in columns if any(key[1:] == column for key in found)]
    yield "Lowered of traced, by attention implementation and case; a dash: nothing traced or no such case.\n"
    yield _row(["type", "model", *(f"{attention} {case}" for attention, case in columns)])
    yield _row(["---"] * (2 + len(columns)))
    for model_type in sorted({record.type for record in records if record.status == "built"}):
        models = {record.model for record in records if record.type == model_type and record.model}
        cells = [found.get((model_type, *column)) for column in columns]
        yield _row([model_type, ", ".join(sorted(models)), *map(_cell, cells)])


def _cell(record: Record | None) -> str:
    if record is None or not record.traced:
        return "-"
    return f"{record.lowered} / {record.traced}"


def _not_built(records: Sequence[Record]) -> Iterable[str]:
    built = {record.type for record in records if record.status == "built"}
    yield "| type | why |"
    yield "|---|---|"
    for record in sorted(records, key=lambda record: record.key):
        if record.status == "not built" and record.type not in built:
            built.add(record.type)
            yield _row([record.type, record.detail])


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
