"""Plots as inline SVG: bars of a step before and after, and the roofline with a dot for each site."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from . import words
from .machines import Machine
from .result import SitePlan, StepPlan

WIDTH, LEFT, RIGHT = 560, 96, 110
BAR, GAP = 16, 22
ROOF_HEIGHT, MARGIN = 300, 44


def bars(step: StepPlan) -> str:
    """FLOPs and bytes of the whole step, as written above as planned; each pair to its own scale."""
    program, cost = step.program, step.cost
    pairs = [
        ("FLOPs", program.flops, cost.flops, words.flops),
        ("KV read", program.kv_bytes, cost.kv_bytes, words.size),
        ("mask", program.mask_bytes, cost.mask_bytes, words.size),
    ]
    rows, y = [], 4
    for name, before, after, unit in pairs:
        most = max(before, after, 1)
        rows.append(f'<text x="{LEFT - 10}" y="{y + BAR + 5}" class="end">{name}</text>')
        for value, kind in ((before, "was"), (after, "now")):
            length = (WIDTH - LEFT - RIGHT) * value / most
            rows.append(
                f'<rect x="{LEFT}" y="{y}" width="{max(length, 1):.1f}" height="{BAR}" class="{kind}"/>'
            )
            rows.append(f'<text x="{LEFT + length + 8:.1f}" y="{y + BAR - 4}">{escape(unit(value))}</text>')
            y += BAR + 2
        y += GAP - 4
    label = f"{step.name}: FLOPs, keys and values read, and mask, as written and as planned"
    return _svg(WIDTH, y, label, rows)


def roofline(sites: Sequence[tuple[str, SitePlan]], machine: Machine) -> str:
    """FLOP/s that the machine allows at each site's FLOPs per byte, both axes logarithmic.

    ``sites`` are pairs of a mark, such as ``"p1"``, and a site.
    """
    points = [
        (mark, site.cost.flops / site.cost.bytes)
        for mark, site in sites
        if site.cost is not None and site.cost.bytes > 0 and site.cost.flops > 0
    ]
    ridge = machine.flops / machine.bandwidth
    lowest = 10 ** math.floor(math.log10(min([1.0, *(intensity for _, intensity in points)])))
    highest = 10 ** math.ceil(math.log10(max([10 * ridge, *(intensity for _, intensity in points)])))

    def x(intensity: float) -> float:
        share = math.log10(intensity / lowest) / math.log10(highest / lowest)
        return LEFT + share * (WIDTH - LEFT - 20)

    def roof(intensity: float) -> float:
        return min(machine.flops, intensity * machine.bandwidth)

    bottom, top = roof(lowest), machine.flops * 3

    def y(rate: float) -> float:
        share = math.log10(rate / bottom) / math.log10(top / bottom)
        return ROOF_HEIGHT - MARGIN - share * (ROOF_HEIGHT - MARGIN - 10)

    floor = ROOF_HEIGHT - MARGIN
    parts = []
    for power in range(round(math.log10(lowest)), round(math.log10(highest)) + 1):
        place = x(10.0**power)
        parts.append(f'<line x1="{place:.1f}" y1="10" x2="{place:.1f}" y2="{floor}" class="grid"/>')
        parts.append(f'<text x="{place:.1f}" y="{floor + 16}" class="middle">{10.0**power:g}</text>')
    corners = [(lowest, bottom), (ridge, machine.flops), (highest, machine.flops)]
    line = " ".join(f"{x(intensity):.1f},{y(rate):.1f}" for intensity, rate in corners)
    parts.append(f'<polyline points="{line}" class="roof"/>')
    peak = f"{machine.flops / 1e12:g} TFLOP/s"
    parts.append(f'<text x="{WIDTH - 20}" y="{y(machine.flops) - 8:.1f}" class="end">{peak}</text>')
    slope = f"{machine.bandwidth / 1e12:g} TB/s"
    middle = math.sqrt(lowest * ridge)
    parts.append(f'<text x="{x(middle) - 10:.1f}" y="{y(roof(middle)) - 6:.1f}" class="end">{slope}</text>')
    for marks, intensity in _apart(points, x):
        place, height = x(intensity), y(roof(intensity))
        parts.append(f'<circle cx="{place:.1f}" cy="{height:.1f}" r="5" class="now"/>')
        parts.append(f'<text x="{place + 4:.1f}" y="{height + 18:.1f}">{escape(marks)}</text>')
    axis = "FLOPs a byte"
    parts.append(f'<text x="{(LEFT + WIDTH - 20) / 2}" y="{ROOF_HEIGHT - 8}" class="middle">{axis}</text>')
    return _svg(WIDTH, ROOF_HEIGHT, f"roofline of {machine.name}", parts)


def _apart(points: Sequence[tuple[str, float]], x: Callable[[float], float]) -> list[tuple[str, float]]:
    """Points of one place under one label."""
    places: dict[int, tuple[list[str], float]] = {}
    for mark, intensity in points:
        places.setdefault(round(x(intensity) / 12), ([], intensity))[0].append(mark)
    return [(" ".join(marks), intensity) for marks, intensity in places.values()]


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return f'{head} aria-label="{escape(label)}">{"".join(parts)}</svg>'
