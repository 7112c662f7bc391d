"""Numbers and layers in words, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels.composed import COMPOSED
from .cost import Cost
from .result import Plan, SitePlan, StackPlan

MOST_LISTED = 5


def layer_span(layers: Sequence[int]) -> str:
    """``3``, ``{0-27}``, ``{0,2,4}``, or ``{0,2,4,..,40}`` where there are many."""
    first, last = layers[0], layers[-1]
    if len(layers) == 1:
        return str(first)
    if last - first + 1 == len(layers):
        return f"{{{first}-{last}}}"
    shown = [str(layer) for layer in layers]
    return "{" + ",".join(shown if len(shown) <= MOST_LISTED else [*shown[:3], "..", shown[-1]]) + "}"


def flops(count: float) -> str:
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def size(count: float) -> str:
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def duration(seconds: float) -> str:
    return _scaled(seconds * 1e6, 1000, ("µs", "ms", "s", "ks"))


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if value < base:
            return f"{value:.3g} {unit}" if value else "0"
        value /= base
    return f"{value:.3g} {units[-1]}"


def figures(cost: Cost) -> tuple[str, str, str]:
    """FLOPs, bytes of keys and values, and bytes of masks."""
    return flops(cost.flops), size(cost.kv_bytes), size(cost.mask_bytes)


def operator(site: SitePlan) -> str:
    """``FIA v1 BSND, sparse_mode 3``, or that the site is left as it was."""
    outcome = site.site
    if outcome.op is None:
        return "left as it was"
    if outcome.op in COMPOSED:
        return f"{outcome.op}, sparse_mode {outcome.sparse_mode}"
    version = "v2" if outcome.op.endswith("_v2") else "v1"
    return f"FIA {version} {outcome.input_layout}, sparse_mode {outcome.sparse_mode}"


def sizes(plan: Plan) -> str:
    known = (("batch", plan.batch), ("prompt", plan.prompt), ("cache", plan.cache))
    return ", ".join(f"{name} {value}" for name, value in known if value is not None)


def stack(stack: StackPlan) -> str:
    """How many layers there are, and how many of them were compiled."""
    kinds = ", ".join(map(layer_span, stack.kinds))
    if not stack.met:
        return f"{stack.path}: {stack.layers} layers, in which what is planned below meets no attention"
    if stack.planned == stack.layers:
        return f"{stack.path}: all {stack.layers} layers compiled"
    if len(stack.kinds) == 1:
        return f"{stack.path}: {stack.layers} identical layers, planned once"
    return (
        f"{stack.path}: {stack.layers} layers of {len(stack.kinds)} kinds ({kinds}); those of a kind are "
        f"identical and planned once, in the first {stack.planned}"
    )


def machine(plan: Plan) -> str:
    """The figures that estimates are made with and where they are from, or why there are none."""
    if plan.machine is None:
        return f"no estimate: {plan.no_estimate}"
    peaks = f"{plan.machine.flops / 1e12:g} TFLOP/s, {plan.machine.bandwidth / 1e12:g} TB/s"
    return f"{plan.machine.name}: {peaks} ({plan.machine.source}). Approximate: {plan.machine.approximate}."
