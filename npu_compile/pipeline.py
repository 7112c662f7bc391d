"""The passes in order: what happens to one graph between dynamo and the device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .kernels.graph_ops import ensure_graph_ops
from .kernels.targets import Target
from .options import Options
from .passes.context_parallel.config import ContextParallel
from .passes.context_parallel.errors import ContextParallelError
from .passes.context_parallel.rewrite import Rewritten, rewrite
from .passes.flash_calls import translate_flash_calls
from .passes.lower.sites import lower
from .passes.mla.lower import DEFAULT as MLA_DEFAULT
from .passes.mla.lower import MlaLowering
from .passes.mla.options import MlaOptions
from .passes.normalise import NormaliseError, normalise
from .passes.packed.pieces import lower_pieces
from .passes.paged.antiquant import dequantise_inside
from .passes.paged.cache_writes import writes_that_stay
from .passes.paged.rewrite import read_in_place
from .passes.recognise import recognise
from .passes.site import SiteOutcome
from .passes.strides import keep_strides

GRADIENTS = (
    "left differentiable, attention and all: gradients are needed. Under torch.no_grad() it is lowered"
)


@dataclass
class Compiled:
    """A graph after all passes: what to run, and what became of each attention site.

    ``traced`` is False for a graph that was left as dynamo gave it.
    """

    module: fx.GraphModule
    traced: bool
    outcomes: tuple[SiteOutcome, ...] = ()
    notes: tuple[str, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    step_inputs: tuple[fx.Node, ...] = ()
    """Inputs behind dynamo's own, which context parallel gives the graph at each step."""


def run_passes(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    target: Target,
    context_parallel: ContextParallel | None = None,
    mla: MlaOptions = MLA_DEFAULT,
    int8_inside: bool = False,
) -> Compiled:
    """Normalise, recognise and lower ``module``.

    A graph that can't be normalised, or that is being trained, is returned as it came, with a
    note that says so. With ``int8_inside``, int8 caches that the program dequantises go to the operator as
    they are.

    Raises:
        ContextParallelError: with ``context_parallel``, an attention of the graph can't take part.
    """
    ensure_graph_ops()
    if is_training(example_inputs):
        return _left(module, GRADIENTS, context_parallel)
    timings: dict[str, float] = {}
    try:
        with _timed(timings, "normalise"):
            normalised = normalise(module, example_inputs)
    except NormaliseError as error:
        return _left(module, f"left as it was: {error}", context_parallel)
    with _timed(timings, "flash calls"):
        flash = translate_flash_calls(normalised, target)
    with _timed(timings, "recognise"):
        found = recognise(normalised.graph)
    together: tuple[SiteOutcome, ...] = ()
    with _timed(timings, "lower"):
        if context_parallel is None:
            found, together = lower_pieces(normalised, found, target)
        specialist = MlaLowering(normalised.graph, found.around, target, mla)
        outcomes = (*flash, *together, *lower(normalised, found, target, specialist))
    with _timed(timings, "paged"):
        notes = dequantise_inside(normalised, target) if int8_inside else ()
        notes += read_in_place(normalised, target) + writes_that_stay(normalised.graph)
    with _timed(timings, "strides"):
        keep_strides(normalised)
    parallel = Rewritten()
    if context_parallel is not None:
        with _timed(timings, "context parallel"):
            parallel = rewrite(normalised, context_parallel, outcomes, target)
    return Compiled(normalised, True, outcomes, (*notes, *parallel.notes), timings, parallel.inputs)


def _left(module: fx.GraphModule, note: str, context_parallel: ContextParallel | None) -> Compiled:
    if context_parallel is not None:
        raise ContextParallelError(note)
    return Compiled(module, False, notes=(note,))


def is_training(example_inputs: Sequence[Any]) -> bool:
    """Whether gradients may be asked for: grad mode is on and an input or parameter needs them."""
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs
    )


def target_of(example_inputs: Sequence[Any], options: Options) -> Target:
    """The machine to lower for: the option, or what the tensors are on."""
    if options.target is not None:
        return options.target
    devices = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)}
    return npu_target() if "npu" in devices else Target.CPU


def npu_target() -> Target:
    """The target of the NPU this process runs on, by torch_npu's SoC version number."""
    import torch_npu

    return soc_target(int(torch_npu._C._npu_get_soc_version()))


_SOC_RANGES = (
    (range(200, 206), Target.ASCEND310P),
    (range(220, 226), Target.ASCEND910B),
    (range(250, 256), Target.ASCEND910_93),
    (range(260, 261), Target.ASCEND950),
)


def soc_target(soc: int) -> Target:
    """Raises RuntimeError for an SoC version number that no target stands for."""
    for numbers, target in _SOC_RANGES:
        if soc in numbers:
            return target
    raise RuntimeError(f"SoC version {soc} is not one this backend can lower for")


@contextmanager
def _timed(timings: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[name] = time.perf_counter() - start
