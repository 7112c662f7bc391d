"""``python -m tests.models.ledger``: measure what is asked for, keep it in the data, write the page."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from tqdm import tqdm
from transformers import CONFIG_MAPPING

from tests.models.ledger import page
from tests.models.ledger.cases import CASES
from tests.models.ledger.data import PATH, Ledger, Record
from tests.models.ledger.measure import measure
from tests.models.ledger.workers import import_models, run_forked

TIMEOUT = 90.0
Task = tuple[str, dict[str, tuple[str, ...]], bool]
"""type, cases by attention implementation, whether backend="eager" is run beside ours."""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models.ledger", description=__doc__)
    parser.add_argument("--types", help="comma-separated; all of them otherwise")
    parser.add_argument("--attention", default="sdpa,eager", help="sdpa, eager, flex_attention")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-failing", action="store_true", help="those with something left or wrong")
    parser.add_argument("--again", action="store_true", help="measure again what is in the data already")
    parser.add_argument("--baseline", action="store_true", help='compare graphs with backend="eager", too')
    parser.add_argument("--page", action="store_true", help="only write the page from the data")
    parser.add_argument("--data", type=Path, default=PATH, help="the file of records")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so long")
    return parser.parse_args(given)


def tasks(asked: argparse.Namespace, ledger: Ledger) -> list[Task]:
    """What is to be measured of each type, in a shuffled but fixed order, so that a part of a run is a fair
    sample."""
    types = asked.types.split(",") if asked.types else list(CONFIG_MAPPING)
    found = []
    for model_type in sorted(types, key=lambda name: hashlib.sha256(name.encode()).digest()):
        cases = {}
        for attention in asked.attention.split(","):
            known = {
                key[2]: record for key, record in ledger.records.items() if key[:2] == (model_type, attention)
            }
            cases[attention] = tuple(case for case in asked.cases.split(",") if _wanted(case, known, asked))
        if any(cases.values()):
            found.append((model_type, cases, asked.baseline))
    return found


def _wanted(case: str, known: dict[str, Record], asked: argparse.Namespace) -> bool:
    whole = known.get("")
    record = whole if whole is not None and whole.status != "built" else known.get(case)
    if asked.only_failing:
        return record is not None and record.failing
    return asked.again or record is None


def work(task: Task) -> Iterator[Record]:
    warnings.simplefilter("ignore")
    model_type, cases, baseline = task
    for attention, names in cases.items():
        if names:
            for record in measure(model_type, attention, names, baseline):
                yield record
                if record.status == "not built":
                    return


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(given)
    ledger = Ledger(asked.data)
    if not asked.page:
        _run(asked, ledger)
    page.write(ledger)


def _run(asked: argparse.Namespace, ledger: Ledger) -> None:
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_models()
    list(measure("llama", "sdpa", ("prefill",), False))  # what the first compilation imports
    todo, end = tasks(asked, ledger), time.monotonic() + 60 * asked.minutes
    bar = tqdm(total=len(todo), unit="type", smoothing=0.02)
    results = run_forked(work, todo, asked.workers, TIMEOUT, lambda: time.monotonic() < end)
    for (model_type, cases, _), records, trouble in results:
        if trouble:
            records.append(_trouble(model_type, cases, records, trouble))
        ledger.put(records)
        bar.set_postfix_str(model_type)
        bar.update()
    bar.close()


def _trouble(model_type: str, cases: dict[str, tuple[str, ...]], done: list[Record], trouble: str) -> Record:
    """The record of the case in which a process ended early."""
    known = {(record.attention, record.case) for record in done}
    planned = [(attention, case) for attention, names in cases.items() for case in ("", *names)]
    attention, case = next(entry for entry in planned if entry not in known)
    return Record(model_type, attention, case, status="gave up", detail=trouble)


if __name__ == "__main__":
    main()
