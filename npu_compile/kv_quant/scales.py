"""The scales of an int8 K/V cache: where they come from, and what was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import AscendFiaError


@dataclass(frozen=True)
class LayerScales:
    """One layer's scales per channel, float32 and positive: ``key`` (N_kv, 1, D), ``value`` (N_kv, 1, Dv)."""

    key: Tensor
    value: Tensor

    def __post_init__(self) -> None:
        for name, scale in (("key", self.key), ("value", self.value)):
            if scale.dim() != 3 or scale.shape[1] != 1 or scale.dtype != torch.float32:
                raise AscendFiaError(f"{name} scale", scale, "it is float32 of shape (N_kv, 1, D)")
            if not bool((scale > 0).all()) or not bool(scale.isfinite().all()):
                raise AscendFiaError(f"{name} scale", float(scale.min()), "scales are positive and finite")


@dataclass(frozen=True)
class KVScales:
    """Scales per channel for every layer of a model, in order."""

    layers: tuple[LayerScales, ...]

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with ``layers.<i>.key_scale`` and ``layers.<i>.value_scale``."""
        tensors = {}
        for index, layer in enumerate(self.layers):
            tensors[f"layers.{index}.key_scale"] = layer.key.contiguous()
            tensors[f"layers.{index}.value_scale"] = layer.value.contiguous()
        save_file(tensors, str(path))

    @classmethod
    def load(cls, path: str | Path) -> KVScales:
        """Read what :meth:`save` wrote. Raises AscendFiaError for a file that holds something else."""
        with safe_open(str(path), "pt") as file:
            names = sorted(file.keys())
            count = len(names) // 2
            wanted = [f"layers.{i}.{kind}_scale" for i in range(count) for kind in ("key", "value")]
            if not names or names != sorted(wanted):
                rule = "it holds layers.<i>.key_scale and .value_scale for each layer, and no offsets"
                raise AscendFiaError(str(path), names, rule)
            tensors = {name: file.get_tensor(name) for name in names}
        layers = (LayerScales(*_pair(tensors, index)) for index in range(count))
        return cls(tuple(layers))


def _pair(tensors: dict[str, Tensor], index: int) -> Iterable[Tensor]:
    return (tensors[f"layers.{index}.{kind}_scale"] for kind in ("key", "value"))


@dataclass(frozen=True)
class Int8KV:
    """How a model's keys and values are cached as int8.

    ``scales`` per channel, or None for one scale per token, which needs no calibration and is kept beside
    the cache. ``layout``: "nd" or "nz" pages; "auto" is NZ on an NPU for scales per channel, else ND.
    """

    scales: KVScales | None = None
    layout: Literal["auto", "nd", "nz"] = "auto"

    def __post_init__(self) -> None:
        if self.layout not in ("auto", "nd", "nz"):
            raise AscendFiaError("layout", self.layout, "it is 'auto', 'nd' or 'nz'")
        if self.layout == "nz" and self.scales is None:
            raise AscendFiaError("layout", "nz", "scales per token come with 'nd' pages")

    def nz(self, device: torch.device) -> bool:
        """Whether pages on ``device`` are NZ."""
        if self.layout == "auto":
            return self.scales is not None and device.type not in ("cpu", "meta")
        return self.layout == "nz"
