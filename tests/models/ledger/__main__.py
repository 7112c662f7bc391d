"""``python -m tests.models.ledger``: measure what is asked for, keep it in the data, write the page.

What the data has already isn't measured again unless asked for, so a run can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from tqdm import tqdm
from transformers import CONFIG_MAPPING

from tests.models.ledger import cost, page
from tests.models.ledger.cases import CASES
from tests.models.ledger.data import PATH, Ledger
from tests.models.ledger.measure import measure
from tests.models.ledger.plan import Task, Wanted, ended_early, plan, work
from tests.models.ledger.workers import import_models, run_forked


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models.ledger", description=__doc__)
    parser.add_argument("--types", help="comma-separated; all of them otherwise")
    parser.add_argument("--attention", default="sdpa,eager", help="sdpa, eager, flex_attention")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated; default: %(default)s")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only-failing", action="store_true", help="again what has something left or wrong")
    parser.add_argument("--again", action="store_true", help="measure again what is in the data already")
    parser.add_argument("--baseline", action="store_true", help='compare graphs with backend="eager", too')
    parser.add_argument("--cost", action="store_true", help="only print what compiling a sample costs")
    parser.add_argument("--page", action="store_true", help="only write the page from the data")
    parser.add_argument(
        "--data", type=Path, default=PATH, help="the file of records; the page is of the default"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so long")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    asked = arguments(given)
    ledger = Ledger(asked.data)
    end = time.monotonic() + 60 * asked.minutes
    types = asked.types.split(",") if asked.types else list(CONFIG_MAPPING)
    if not asked.page:
        _prepare(asked.attention.split(","))
    if asked.cost:
        _print_cost(types, asked, lambda: time.monotonic() < end)
        return
    if not asked.page:
        wanted = Wanted(asked.again, asked.only_failing, asked.baseline)
        tasks = plan(types, asked.attention.split(","), asked.cases.split(","), ledger, wanted)
        _run(tasks, ledger, asked.workers, lambda: time.monotonic() < end)
    if ledger.path == PATH:
        page.write(ledger)


def _prepare(attentions: Sequence[str]) -> None:
    """What is done once, before processes are forked: imports, and those of a first compilation."""
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_models()
    for attention in attentions:
        list(measure("llama", attention, ("prefill",), False))


def _run(tasks: Sequence[Task], ledger: Ledger, workers: int, goes_on: Callable[[], bool]) -> None:
    with tqdm(total=len(tasks), unit="type", smoothing=0.02) as bar:
        for task, records, trouble in run_forked(work, tasks, workers, lambda task: task.seconds, goes_on):
            if trouble:
                records.append(ended_early(task, records, trouble))
            ledger.replace(task.type, task.cases, records)
            bar.set_postfix_str(task.type)
            bar.update()


def _print_cost(types: Sequence[str], asked: argparse.Namespace, goes_on: Callable[[], bool]) -> None:
    sample = types if asked.types else sorted(types)[:: cost.EVERY]
    tasks = [(model_type, attention) for model_type in sample for attention in asked.attention.split(",")]
    found = []
    for _, costs, _ in tqdm(
        run_forked(cost.cost, tasks, asked.workers, lambda task: 300.0, goes_on), total=len(tasks)
    ):
        found += costs
    print(cost.table(found))


if __name__ == "__main__":
    main()
