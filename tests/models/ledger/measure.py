"""One type, one attention implementation, some cases: what the plain model computes, what became of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.utils._pytree import tree_map

import npu_compile
from tests.models.ledger.build import UNSUPPORTED, Built, NotBuilt, build, sentence
from tests.models.ledger.cases import CASES, Case, NotApplicable, Outputs, plainly
from tests.models.ledger.count import Counting
from tests.models.ledger.data import Record
from tests.models.ledger.uses import Uses

TOLERANCE = 1e-4
DOUBLE = 1e-10


@dataclass
class Graph:
    """One graph that dynamo handed over. Known once it has run: ``counted``, and ``used`` of these, on whose
    results something outside of the graph depends."""

    counted: int = 0
    used: int = 0
    runs: int = 0
    report: npu_compile.GraphReport | None = None


@dataclass
class Watched:
    """A backend that has ``name`` compile, and counts in each graph as dynamo gave it."""

    name: str
    graphs: list[Graph] = field(default_factory=list)

    def __call__(self, module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = Graph()
        self.graphs.append(graph)
        run = lookup_backend(self.name)(module, inputs)
        if self.name == "ascend_fia":
            graph.report = npu_compile.last_report().graphs[-1]

        def counted(*args: Any) -> Any:
            if not graph.runs:
                given, uses = tree_map(_copy, args), Uses()
                with Counting(uses) as counting:
                    returned = module.forward(*given)
                graph.counted = counting.count.total
                graph.used = len(uses.leading_to(returned))
            graph.runs += 1
            return run(*args)

        return counted


def _copy(value: Any) -> Any:
    """A graph may write to what it is given, but never to parameters."""
    return (
        value.clone()
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        else value
    )


def measure(model_type: str, attention: str, cases: Sequence[str], baseline: bool) -> Iterator[Record]:
    """The records of ``cases``. With ``baseline``, backend="eager" is run beside ours where we have several
    graphs."""
    try:
        built = build(model_type, attention)
    except NotBuilt as error:
        unsupported = str(error) == UNSUPPORTED
        status = "unsupported" if unsupported else "not built"
        yield Record(model_type, attention, "", status=status, detail="" if unsupported else str(error))
        return
    whole = Record(model_type, attention, "", status="built", size=built.size, inputs=sorted(built.inputs))
    whole.model = type(built.model).__name__
    for name in cases:
        record = Record(model_type, attention, name)
        try:
            _measure(record, built, CASES[name], baseline)
            yield record
        except NotApplicable:
            whole.without.append(name)
    yield whole


def _measure(record: Record, built: Built, case: Case, baseline: bool) -> None:
    counting = Counting()

    def forward(**inputs: Any) -> Any:
        with counting:
            return built.model.forward(**inputs)

    try:
        with torch.no_grad():
            torch.manual_seed(0)
            expected = case(built, plainly(forward))
    except NotApplicable:
        raise
    except Exception as error:
        record.status, record.detail = "the plain model raises", sentence(error)
        return
    record.counted, record.fused = counting.count.total, counting.count.fused
    if not record.counted and record.case != "prefill":
        raise NotApplicable
    ours = Watched("ascend_fia")
    try:
        actual = _compiled(built, case, ours)
        record.error, record.argmax = difference(actual, expected)
    except Exception as error:
        record.status, record.detail = "raises", sentence(error, 300)
    _tell(record, ours)
    wrong = record.status == "raises" or record.error > TOLERANCE or not record.argmax
    # One graph can't be more than another backend's.
    if (baseline and record.graphs > 1) or wrong:
        _compare(record, built, case, expected, actual if record.status != "raises" else None, wrong)
    if record.status == "mismatch":
        _settle(record, built, case)


def _compare(
    record: Record, built: Built, case: Case, expected: Outputs, actual: Outputs | None, wrong: bool
) -> None:
    """Whether backend="eager" has as many graphs and the same faults."""
    eager = Watched("eager")
    try:
        plain = _compiled(built, case, eager)
        error, argmax = difference(plain, expected)
    except Exception as failure:
        if wrong:
            record.status, record.detail = "the eager backend raises", sentence(failure)
        return
    record.eager_graphs = len(eager.graphs)
    if error > TOLERANCE or not argmax:
        record.status = "the eager backend differs"
        if actual is not None:
            record.error, record.argmax = difference(actual, plain)
            if record.error > TOLERANCE or not record.argmax:
                record.status = "mismatch"
    elif wrong and record.status != "raises":
        record.status = "mismatch"


def _settle(record: Record, built: Built, case: Case) -> None:
    """Tell a fault from a choice that rounding has changed, such as the best of a detector's queries.

    In float64 no choice is so near: where the outputs agree to ``DOUBLE`` they are right.
    """
    built.model.double()
    inputs = {name: _double(value) for name, value in built.inputs.items()}
    double = replace(built, inputs=inputs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            torch.manual_seed(0)
            expected = case(double, plainly(built.model.forward))
        error, argmax = difference(_compiled(double, case, Watched("ascend_fia")), expected)
    except Exception as failure:
        record.detail = f"in float64: {sentence(failure)}"
        return
    finally:
        torch.set_default_dtype(default)
        built.model.float()
    if error <= DOUBLE and argmax:
        record.status, record.detail = (
            "a near tie",
            f"float32 differs by {record.error:.0e}, float64 by {error:.0e}",
        )
        record.error, record.argmax = error, argmax


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _compiled(built: Built, case: Case, backend: Watched) -> Outputs:
    torch._dynamo.reset()
    with torch.no_grad():
        torch.manual_seed(0)
        return case(built, torch.compile(built.model.forward, backend=backend))


def _tell(record: Record, ours: Watched) -> None:
    """What the reports of all graphs say, next to what was counted in them."""
    record.graphs = len(ours.graphs)
    for graph in ours.graphs:
        sites = graph.report.sites if graph.report else ()
        lowered = [site for site in sites if site.lowered]
        declined = [site for site in sites if not site.lowered]
        left = Counter(f"{site.form}: {without_names(site.reason or '')}" for site in declined)
        record.traced += graph.used
        record.unused += graph.counted - graph.used
        record.lowered += len(lowered)
        record.unlisted += max(0, graph.used - len(sites))
        record.surplus += max(0, len(lowered) - graph.counted)
        for site in lowered:
            name = f"{site.op} {site.input_layout} sparse_mode={site.sparse_mode} {without_names(site.mask)}"
            record.rows[name] = record.rows.get(name, 0) + 1
        record.where += [_place(site.source) for site in declined]
        for reason, count in left.items():
            record.left[reason] = record.left.get(reason, 0) + count
        if graph.report and not sites and graph.used:
            for note in graph.report.notes:
                record.left[note] = record.left.get(note, 0) + graph.used
                record.unlisted -= graph.used
                break
    record.where = sorted(set(record.where))
    record.outside = max(0, record.counted - sum(graph.counted * graph.runs for graph in ours.graphs))


def _place(source: str) -> str:
    """``file:line`` without the folders."""
    return source.rpartition("/")[2]


def without_names(text: str) -> str:
    """A mask's or a reason's class: an operator's number in its graph is left out, values are dots."""
    text = re.sub(r"\bs\d+\b", "s", text)
    text = re.sub(r"\bL_\w+|\b[A-Za-z]\w*_\d+_\w*|\b(cache|input|attention)_\w+", "…", text)
    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)_\d*\b", r"\1", text)


def difference(actual: Outputs, expected: Outputs) -> tuple[float, bool]:
    """The largest error, relative to each output's largest value (at least 1), and whether every arg-max
    of the actual output is one of the expected output's, up to the tolerance."""
    if [tuple(value.shape) for value in actual] != [tuple(value.shape) for value in expected]:
        return float("inf"), False
    worst, agrees = 0.0, True
    for got, want in zip(actual, expected, strict=True):
        if not want.numel():
            continue
        got, want = got.double(), want.double()
        same = (got == want) | (got.isnan() & want.isnan())
        error = torch.where(same, 0.0, (got - want).abs()).nan_to_num(float("inf")).max()
        finite = want[want.isfinite()].abs()
        bound = max(1.0, float(finite.max())) if finite.numel() else 1.0
        worst = max(worst, float(error) / bound)
        if want.ndim:
            chosen = want.gather(-1, got.argmax(-1, keepdim=True)).squeeze(-1)
            best = want.amax(-1)
            agrees &= bool(
                ((chosen == best) | ((best - chosen).abs() <= TOLERANCE * bound) | best.isnan()).all()
            )
    return worst, agrees
