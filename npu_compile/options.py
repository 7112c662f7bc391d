"""``mode=`` and ``options=`` of ``torch.compile(..., backend="ascend_fia")``, checked and typed.

An option is one field of :class:`Options`: its name, type, default, kind of value and
documentation stand on one line and nowhere else (docs/options.md holds the table that
:func:`markdown_table` makes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import AscendFiaError
from .kernels.targets import Target
from .option_kinds import Choice, Count, Flag, Kind, Sizes, TorchBackend, did_you_mean
from .parallel.option import ContextParallelOption
from .passes.context_parallel.config import ContextParallel
from .passes.mla.options import MlaOptions

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"capture": True},
    "max-autotune": {"capture": True},
    "max-autotune-no-cudagraphs": {},
}
"""torch.compile's modes and the options each stands for."""


def option(default: Any, kind: Kind, doc: str) -> Any:
    """A field of :class:`Options`."""
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc})


@dataclass(frozen=True)
class Options:
    """What the backend was asked for. Raises :class:`AscendFiaError` for a value that isn't allowed."""

    target: Target | None = option(
        None,
        Choice.of(Target, optional=True),
        "the machine to lower for; None: by the device the tensors are on",
    )
    strict: bool = option(
        False, Flag(), "raise, instead of reporting, when an attention computation can't be lowered"
    )
    inner_backend: str = option(
        "eager", TorchBackend(), "the torch.compile backend that runs the lowered graph"
    )
    capture: bool = option(False, Flag(), "capture each step as a graph once per shape, and replay it")
    capture_sizes: tuple[int, ...] | None = option(
        None, Sizes(), "batch sizes to capture; smaller batches are padded to the next; None: as they come"
    )
    capture_overflow: Literal["eager", "error"] = option(
        "eager", Choice(("eager", "error")), "what a batch larger than every capture size does"
    )
    on_moved_input: Literal["recapture", "error"] = option(
        "recapture",
        Choice(("recapture", "error")),
        "what a replay does when a parameter or cache is no longer where it was captured",
    )

    context_parallel: ContextParallel | None = option(
        None, ContextParallelOption(), "tokens or KV cache split over the ranks of a group"
    )
    kv_quant: Literal["c8"] | None = option(
        None,
        Choice(("c8",), optional=True),
        "int8 K/V caches that the program dequantises; 'c8': they go to the operator as they are",
    )
    mla: Literal["auto", "absorb", "expand"] = option(
        "auto",
        Choice(("auto", "absorb", "expand")),
        "multi-head latent attention over latents (absorb) or expanded keys; auto: by cost",
    )
    max_context_tokens: int = option(
        MlaOptions.max_context_tokens,
        Count(),
        "tokens of a cache of latents, over all requests, expanded at a time",
    )
    mla_fusions: Literal["none", "output", "all"] = option(
        MlaOptions.fusions,
        Choice(("none", "output", "all")),
        "fused operators around latents on a device: the output product, or cache writes too",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            kind, value = field.metadata["kind"], getattr(self, field.name)
            try:
                object.__setattr__(self, field.name, kind.accept(value))
            except ValueError as error:
                rule = f"{error}; allowed: {kind.allowed}"
                raise AscendFiaError(f"options[{field.name!r}]", value, rule) from None
        if self.capture and self.inner_backend != "eager":
            rule = "a captured graph runs as it is: use inner_backend 'eager', or capture False"
            raise AscendFiaError("options['inner_backend']", self.inner_backend, rule)

    def signature(self) -> tuple[Any, ...]:
        """The options by value, hashable; of an option that refers to objects only its type."""
        plain = str | int | tuple | None
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return tuple(value if isinstance(value, plain) else type(value) for value in values)


def parse(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """The :class:`Options` for what torch.compile was given; ``options`` win over ``mode``.

    Raises :class:`AscendFiaError`, naming the option, its value and what is allowed.
    """
    if mode is not None and (not isinstance(mode, str) or mode not in MODES):
        allowed = ", ".join(map(repr, MODES))
        raise AscendFiaError("mode", mode, f"unknown mode{did_you_mean(mode, MODES)}; allowed: {allowed}")
    if options is not None and not isinstance(options, Mapping):
        raise AscendFiaError("options", options, "must be a mapping of option names to values")
    known = [field.name for field in dataclasses.fields(Options)]
    for name, value in (options or {}).items():
        if name not in known:
            rule = f"unknown option{did_you_mean(name, known)}; allowed: {', '.join(known)}"
            raise AscendFiaError(f"options[{name!r}]", value, rule)
    return Options(**{**MODES[mode or "default"], **(options or {})})


def markdown_table() -> str:
    """The table of docs/options.md."""
    rows = ["| option | default | allowed | what |", "|---|---|---|---|"]
    for field in dataclasses.fields(Options):
        kind, doc = field.metadata["kind"], field.metadata["doc"]
        rows.append(f"| `{field.name}` | `{field.default!r}` | {kind.allowed} | {doc} |")
    return "\n".join(rows) + "\n"
