"""Published models at their true sizes: each is planned in time, and its attention is accounted for."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from npu_compile.kernels.contract import check
from npu_compile.planning import planner
from npu_compile.planning.trace import trace
from tests.npu_compile.plan import survey

SMALL = ("distilbert-base", "vit-base", "llama-3.2-1b")
LARGEST = ("deepseek-v3", "qwen3-235b-a22b")
MOST_SECONDS, MOST_BYTES = 90, 4 << 30
"""Of one core, whatever else the machine does meanwhile."""


@pytest.mark.parametrize(
    "name",
    [name if name in SMALL else pytest.param(name, marks=pytest.mark.nightly) for name in survey.NAMES],
)
def test_attention_of_a_published_model(name, monkeypatch):
    traced = []

    def kept(*arguments):
        graphs = trace(*arguments)
        traced.extend(graphs)
        return graphs

    monkeypatch.setattr(planner, "trace", kept)
    start = time.process_time()
    plan = survey.made(name)
    assert time.process_time() - start < MOST_SECONDS
    assert plan.sites
    for site in plan.sites:
        if site.site.lowered:
            assert site.site.input_layout and site.cost is not None
        else:
            assert site.site.reason
    notes = [note for step in plan.steps for graph in step.report.graphs for note in graph.notes]
    assert not [note for note in notes if note.startswith("left as it was")]
    assert illegal_calls(traced) == []
    assert survey.entry(plan) == survey.pinned()[name]


def illegal_calls(traced):
    """Rules that the fused calls break, asked anew of the operators' contract."""
    broken, calls = [], 0
    for graph in traced:
        for node in graph.compiled.module.graph.nodes:
            operator = getattr(node.target, "_schema", None)
            if operator is None or not operator.name.startswith("ascend_fia::npu_"):
                continue
            names = [argument.name for argument in operator.arguments]
            given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            values = {
                key: value.meta["val"] if isinstance(value, torch.fx.Node) else value
                for key, value in given.items()
            }
            calls += 1
            broken += check(operator.name.partition("::")[2], values, survey.TARGET)
    outcomes = [outcome for graph in traced for outcome in graph.compiled.outcomes]
    assert calls >= sum(outcome.lowered and outcome.op.startswith("npu_") for outcome in outcomes)
    return broken


@pytest.mark.nightly
@pytest.mark.parametrize("name", LARGEST)
def test_the_largest_take_little_time_and_memory(name):
    code = (
        "import resource, sys; from npu_compile.cli import main; code = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(code)"
    )
    sizes = ["--batch", "8", "--prompt", "4096", "--cache", "8192"]
    command = [sys.executable, "-c", code, "plan", "--config", str(survey.CONFIGS / f"{name}.json"), *sizes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, kibibytes = done.stdout.splitlines()[-1].split()
    assert float(seconds) < MOST_SECONDS
    assert int(kibibytes) * 1024 < MOST_BYTES


def test_at_least_forty_published_models_are_pinned():
    assert len(survey.NAMES) >= 40
    assert sorted(survey.pinned()) == survey.NAMES


def test_the_document_has_the_table_of_what_is_pinned():
    """Otherwise: python -m tests.npu_compile.plan.survey"""
    assert survey.PAGE.read_text() == survey.page_with(survey.table(survey.pinned()))
