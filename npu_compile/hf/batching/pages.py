"""How tokens are stored in the pages of a layer: as they are, or as int8."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import AscendFiaError
from ...kv_quant.int8 import NZ_WIDTH, dequantise, nz_pages, nz_rows, quantise, token_scale
from ...kv_quant.scales import Int8KV
from ..kv_views import Antiquant

Pair = tuple[Tensor, Tensor]
"""Something of keys and the same of values. Pages are (P, block_size, N_kv, D), rows (T, N_kv, D)."""


class Pages(Protocol):
    def write(self, layer: int, rows: Pair, pages: Pair, slots: Tensor) -> None:
        """Put ``rows`` in ``slots`` (T,); those with slot -1 nowhere, which the first row isn't."""

    def read(self, layer: int, pages: Pair, slots: Tensor) -> Pair:
        """New tensors with the rows in ``slots``, in the model's dtype."""

    def antiquant(self, layer: int) -> Antiquant | None:
        """What the operator needs to read the pages itself."""


class RealPages:
    """The model's dtype."""

    def write(self, layer: int, rows: Pair, pages: Pair, slots: Tensor) -> None:
        _scatter(rows, pages, slots, "Norm")

    def read(self, layer: int, pages: Pair, slots: Tensor) -> Pair:
        keys, values = (page.flatten(0, 1).index_select(0, slots) for page in pages)
        return keys, values

    def antiquant(self, layer: int) -> None:
        return None


class ChannelPages:
    """int8 with scales per channel, in ND or NZ pages."""

    def __init__(self, asked: Int8KV, dtype: torch.dtype, device: torch.device, page_size: int) -> None:
        assert asked.scales is not None
        self.dtype, self.nz = dtype, asked.nz(device)
        self._scales = [
            tuple(scale.to(device, dtype) for scale in (layer.key, layer.value))
            for layer in asked.scales.layers
        ]
        dims = {scale.shape[-1] for layer in self._scales for scale in layer}
        if self.nz and (page_size % NZ_WIDTH or any(dim % NZ_WIDTH for dim in dims)):
            sizes = f"page_size {page_size} and head dims {sorted(dims)}"
            raise AscendFiaError("layout", "nz", f"{sizes} have to be multiples of {NZ_WIDTH}")

    def write(self, layer: int, rows: Pair, pages: Pair, slots: Tensor) -> None:
        keys, values = (
            quantise(real, scale.transpose(0, 1))
            for real, scale in zip(rows, self._scales[layer], strict=True)
        )
        if self.nz:
            tiles = [nz_pages(page).flatten(1, 2) for page in pages]
            _scatter((keys, values), (tiles[0], tiles[1]), slots, "PA_NZ")
        else:
            _scatter((keys, values), pages, slots, "Norm")

    def read(self, layer: int, pages: Pair, slots: Tensor) -> Pair:
        stored = [
            nz_rows(nz_pages(page), slots) if self.nz else page.flatten(0, 1).index_select(0, slots)
            for page in pages
        ]
        keys, values = (
            dequantise(s, scale.transpose(0, 1), self.dtype)
            for s, scale in zip(stored, self._scales[layer], strict=True)
        )
        return keys, values

    def antiquant(self, layer: int) -> Antiquant:
        key_scale, value_scale = self._scales[layer]
        return Antiquant(0, key_scale, value_scale, self.nz)


class TokenPages:
    """int8 with a scale per token, kept in pages of their own: float32 (P, block_size)."""

    def __init__(self, dtype: torch.dtype, allocators: dict[int, Any]) -> None:
        self.dtype = dtype
        self._scales: dict[int, Pair] = {}
        for allocator in set(allocators.values()):
            tensor = allocator.cache_tensor
            shape = (
                tensor.shape[0] * tensor.shape[1] // allocator.tokens_per_page,
                allocator.tokens_per_page,
            )
            scales = torch.ones(shape, device=tensor.device)
            for position, layer in enumerate(allocator.layer_indices):
                count = allocator.get_cache_for_block_table(layer)[0].shape[0]
                # A layer's pages of keys begin at twice its position, those of values one later.
                keys, values = (scales[2 * position + kind :][:count] for kind in (0, 1))
                self._scales[layer] = (keys, values)

    def write(self, layer: int, rows: Pair, pages: Pair, slots: Tensor) -> None:
        new = [token_scale(real) for real in rows]
        # An index has no -1 that skips: rows of padding write what the first row writes.
        skipped = slots < 0
        indices = torch.where(skipped, slots[:1], slots)
        for scales, scale in zip(self._scales[layer], new, strict=True):
            scales.view(-1).index_copy_(0, indices, torch.where(skipped, scale[:1], scale))
        keys, values = (quantise(real, s[:, None, None]) for real, s in zip(rows, new, strict=True))
        _scatter((keys, values), pages, slots, "Norm")

    def read(self, layer: int, pages: Pair, slots: Tensor) -> Pair:
        keys, values = (
            dequantise(page.flatten(0, 1)[slots], scales.view(-1)[slots][:, None, None], self.dtype)
            for page, scales in zip(pages, self._scales[layer], strict=True)
        )
        return keys, values

    def antiquant(self, layer: int) -> Antiquant:
        key_scale, value_scale = self._scales[layer]
        return Antiquant(4, key_scale, value_scale)


def _scatter(rows: Pair, pages: Pair, slots: Tensor, mode: str) -> None:
    key, value = rows
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key.contiguous(), value.contiguous(), *pages, slots, cache_mode=mode
    )
