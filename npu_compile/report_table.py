"""A report as a table for a terminal of 100 columns or more (rich)."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .console import WIDTH, console
from .passes.site import SiteOutcome
from .report import CaptureReport, GraphReport, Report


def show(report: Report) -> None:
    """Print ``report`` on the terminal."""
    console().print(_layout(report))


def render(report: Report, width: int = WIDTH) -> str:
    """``report`` as plain text of at most ``width`` columns."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(_layout(report))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _layout(report: Report) -> RenderableType:
    if not report.graphs:
        return Text("ascend_fia: nothing compiled yet")
    head = f"ascend_fia: {len(report.lowered)} of {len(report.sites)} attention computations lowered"
    return Group(Text(head, style="bold"), *(part for graph in report.graphs for part in _graph(graph)))


def _graph(graph: GraphReport) -> Iterator[RenderableType]:
    facts = [f"graph {graph.name}", f"target {graph.target}", graph.execution]
    if graph.sites:
        facts.append(f"{len(graph.lowered)} of {len(graph.sites)} lowered")
    elif not graph.notes:
        facts.append("no attention")
    if graph.timings:
        facts.append(f"{sum(graph.timings.values()):.2f} s")
    yield Text("\n" + " · ".join(filter(None, facts)), style="bold cyan")
    for note in graph.notes:
        yield _bullet(note)
    if graph.lowered:
        yield _table(graph.lowered)
    if graph.capture is not None:
        yield from map(_bullet, _capture(graph.capture))
    for where, group in _alike(graph.left):
        site = group[0]
        yield _bullet(f"left as it was: {where} ({_origin(site)}): {site.reason}", style="yellow")
    for where, group in _alike(graph.lowered):
        yield from (_bullet(f"{where}: {note}") for note in group[0].notes)


def _capture(capture: CaptureReport) -> Iterator[str]:
    if capture.refusal is not None:
        yield f"not captured: {capture.refusal}"
        return
    sizes = "as they come" if capture.sizes is None else ", ".join(map(str, capture.sizes))
    yield f"captured once a shape (batches: {sizes}); lengths: {capture.lengths or 'none'}"
    alike: dict[tuple[str, ...], list[int]] = {}
    for record, operator, _, key, source in capture.update_plan:
        alike.setdefault((operator, key, source), []).append(int(record))
    for (operator, key, source), records in alike.items():
        update = f"{key} = {source}" if key else "no lengths"
        yield f"update of record {_span(records)}, {operator}: {update}"


def _table(sites: Sequence[SiteOutcome]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("n", justify="right")
    table.add_column("where", ratio=1, overflow="fold")
    table.add_column("mask, lengths", ratio=1)
    table.add_column("operator (npu_…)", no_wrap=True)
    table.add_column("sizes", no_wrap=True)
    for where, group in _alike(sites):
        site = group[0]
        table.add_row(
            str(len(group)),
            f"{where}\n{_origin(site)}",
            f"{site.mask or 'no mask'}\n{site.lengths}".rstrip(),
            _operator(site),
            _sizes(site),
        )
    return table


def _operator(site: SiteOutcome) -> str:
    name = re.split(r"\.|::", site.op or "")[-1].removeprefix("npu_")
    mode = "" if site.sparse_mode is None else f", sparse_mode {site.sparse_mode}"
    return f"{name}\n{site.input_layout}{mode}"


def _sizes(site: SiteOutcome) -> str:
    dims = dict.fromkeys([site.head_dim, site.value_head_dim])
    lines = [
        f"{site.num_heads}/{site.num_key_value_heads} heads, dim {'/'.join(map(str, dims))}",
        f"Q {site.query_len}, K {site.key_len}",
        "" if site.cache == "none" else f"{site.cache} cache",
    ]
    return "\n".join(lines).rstrip()


def _origin(site: SiteOutcome) -> str:
    return " ".join(filter(None, [site.form, os.path.basename(site.source)]))


def _bullet(text: str, style: str = "") -> RenderableType:
    return Padding(Text(f"• {text}", style=style), (0, 0, 0, 2))


def _alike(sites: Iterable[SiteOutcome]) -> list[tuple[str, list[SiteOutcome]]]:
    """Sites that differ by layer number only, put together, with where they are."""
    groups: dict[SiteOutcome, list[SiteOutcome]] = {}
    for site in sites:
        template = re.sub(r"\d+", "#", site.module_path)
        groups.setdefault(dataclasses.replace(site, name="", module_path=template), []).append(site)
    return [(_paths([site.module_path or site.name for site in group]), group) for group in groups.values()]


def _paths(paths: Sequence[str]) -> str:
    """``["h.0.attn", "h.1.attn", "h.2.attn"]`` as ``"h.{0-2}.attn"``."""
    if len(set(paths)) == 1:
        return paths[0]
    if len({re.sub(r"\d+", "#", path) for path in paths}) > 1:
        return f"{paths[0]} and others"
    columns = zip(*(map(int, re.findall(r"\d+", path)) for path in paths), strict=True)
    numbers = [sorted(set(column)) for column in columns]
    if math.prod(map(len, numbers)) != len(paths):
        return f"{paths[0]} and others"
    spans = map(_span, numbers)
    return re.sub(r"\d+", lambda _: next(spans), paths[0])


def _span(values: list[int]) -> str:
    """Numbers in order, as ``7``, ``{0-5}`` or ``{0,2,4}``."""
    if len(values) == 1:
        return str(values[0])
    first, last = values[0], values[-1]
    return f"{{{first}-{last}}}" if last - first + 1 == len(values) else f"{{{','.join(map(str, values))}}}"
