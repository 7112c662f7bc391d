"""A plan as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from . import words
from .plot import bars, roofline
from .result import Plan, SitePlan, StepPlan
from .style import STYLE


def page(plan: Plan) -> str:
    """The page, readable at 1280 pixels without scrolling sideways."""
    title = f"{plan.name} on {plan.target}"
    body = "\n".join(_body(plan))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(plan: Plan) -> Iterator[str]:
    lowered = sum(site.count for site in plan.sites if site.site.lowered)
    every = sum(site.count for site in plan.sites)
    yield f"<h1>{escape(plan.name)} <span>on {escape(plan.target)}</span></h1>"
    yield (
        f"<p class=lead>{escape(plan.model)}, {escape(plan.dtype)}, {escape(words.sizes(plan))}: "
        f"{lowered} of {every} attention computations become fused operators.</p>"
    )
    lines = (*map(words.stack, plan.stacks), words.machine(plan), *plan.notes)
    yield "<ul class=facts>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
    marked = list(_marked(plan))
    for step in plan.steps:
        yield from _step(step, [(mark, site) for mark, owner, site in marked if owner is step])
    if plan.machine is not None and marked:
        yield "<h2>Where the machine's limits are</h2>"
        yield "<figure>" + roofline([(mark, site) for mark, _, site in marked], plan.machine)
        yield (
            "<figcaption>Each dot is a site of the tables above: left of the bend it waits for memory, right "
            "of it for arithmetic. Times are FLOPs over the peak, or bytes over the bandwidth, whichever is "
            "longer: lower bounds.</figcaption></figure>"
        )
    yield f"<p class=note>Planned in {plan.seconds:.1f} s without weights and without running a kernel.</p>"


def _marked(plan: Plan) -> Iterator[tuple[str, StepPlan, SitePlan]]:
    for step in plan.steps:
        for number, site in enumerate(step.sites, 1):
            yield f"{step.name[0]}{number}", step, site


def _step(step: StepPlan, sites: list[tuple[str, SitePlan]]) -> Iterator[str]:
    time = "" if step.seconds is None else f", at least {words.duration(step.seconds)} of attention"
    yield f"<h2>{escape(step.name.capitalize())} <span>{escape(step.what)}{escape(time)}</span></h2>"
    if step.notes:
        yield "<ul class=facts>" + "".join(f"<li>{escape(note)}</li>" for note in step.notes) + "</ul>"
    if not sites:
        yield "<p>No attention was found in it.</p>"
        return
    yield "<table>" + _head() + "".join(_row(mark, site) for mark, site in sites) + "</table>"
    yield from _reasons(sites)
    yield f"<figure>{bars(step)}"
    yield (
        "<figcaption><i class=was></i> as the model is written, <i class=now></i> as planned. All layers "
        "together; keys and values with their own head count.</figcaption></figure>"
    )


def _head() -> str:
    numbers = ("FLOPs", "KV read", "mask bytes", "time ≥")
    names = ("", "n", "where", "mask", "operator", "heads, sizes", *numbers)
    cells = (f"<th{' class=number' if name in ('n', *numbers) else ''}>{name}</th>" for name in names)
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _row(mark: str, site: SitePlan) -> str:
    outcome = site.site
    shape = ""
    if outcome.num_heads is not None:
        dims = dict.fromkeys((outcome.head_dim, outcome.value_head_dim))
        shape = (
            f"{outcome.num_heads}/{outcome.num_key_value_heads} heads of {'/'.join(map(str, dims))}<br>"
            f"Q {outcome.query_len}, K {outcome.key_len}"
        )
    time = (
        "" if site.estimate is None else f"{words.duration(site.estimate.seconds)}<br>{site.estimate.bound}"
    )
    numbers = (str(site.count), *_changes(site), time)
    texts = (f"<b>{mark}</b>", escape(site.where), escape(outcome.mask), escape(words.operator(site)), shape)
    order = (texts[0], numbers[0], *texts[1:], *numbers[1:])
    numeric = {1, 6, 7, 8, 9}
    cells = (f"<td{' class=number' if i in numeric else ''}>{cell}</td>" for i, cell in enumerate(order))
    return f"<tr{'' if outcome.lowered else ' class=left'}>{''.join(cells)}</tr>"


def _changes(site: SitePlan) -> tuple[str, ...]:
    if site.program is None or site.cost is None:
        return "unknown", "", ""
    return tuple(map(_change, words.figures(site.program), words.figures(site.cost)))


def _change(before: str, after: str) -> str:
    return escape(after) if before == after else f"<s>{escape(before)}</s><br>{escape(after)}"


def _reasons(sites: Iterable[tuple[str, SitePlan]]) -> Iterator[str]:
    """Why sites were left, and the notes on those that were not."""
    lines = []
    for mark, site in sites:
        said = [site.site.reason] if site.site.reason else []
        lines += [f"<li><b>{mark}</b> {escape(text)}</li>" for text in (*said, *site.site.notes)]
    if lines:
        yield f"<ul class=facts>{''.join(lines)}</ul>"
