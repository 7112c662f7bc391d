"""One reading of an FIA call, v1 or v2, for the rules.

Arguments go by their v1 names here; violations name them as the caller did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..layouts import LAYOUTS, Layout, QuerySizes, Size, query_sizes
from .facts import ListFacts, TensorFacts, proven

V2_NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "key_antiquant_scale": "dequant_scale_key",
    "key_antiquant_offset": "dequant_offset_key",
    "value_antiquant_scale": "dequant_scale_value",
    "value_antiquant_offset": "dequant_offset_value",
    "key_antiquant_mode": "key_quant_mode",
    "value_antiquant_mode": "value_quant_mode",
    "key_rope_antiquant_scale": "dequant_scale_key_rope",
    "quant_scale2": "quant_scale_out",
    "quant_offset2": "quant_offset_out",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}
"""v1 name to v2 name, where they differ and mean the same."""

V1_NAMES = {v2: v1 for v1, v2 in V2_NAMES.items()}


@dataclass(frozen=True)
class KvSizes:
    """Sizes of a key or value. Paged: ``batch`` counts blocks and ``seq`` is a block's tokens."""

    batch: Size
    heads: Size
    seq: Size
    head_dim: Size


class FiaCall:
    """``arguments`` has all of the operator's arguments, defaults included, as facts."""

    def __init__(self, version: int, arguments: Mapping[str, Any]) -> None:
        self.version = version
        names = V1_NAMES if version == 2 else {}
        self.args: dict[str, Any] = {names.get(name, name): value for name, value in arguments.items()}

    def argument_name(self, name: str) -> str:
        return V2_NAMES.get(name, name) if self.version == 2 else name

    def __getitem__(self, name: str) -> Any:
        """An argument by its v1 name; None where this version has no such argument."""
        return self.args.get(name)

    def tensor(self, name: str) -> TensorFacts | None:
        value = self.args.get(name)
        return value if isinstance(value, TensorFacts) else None

    @cached_property
    def query(self) -> TensorFacts:
        query: TensorFacts = self.args["query"]
        return query

    @cached_property
    def key(self) -> TensorFacts:
        key: TensorFacts = self.args["key"]
        return key

    @cached_property
    def value(self) -> TensorFacts:
        value: TensorFacts = self.args["value"]
        return value

    @cached_property
    def layout(self) -> Layout:
        return LAYOUTS[self.args["input_layout"]]

    @cached_property
    def heads(self) -> int:
        heads: int = self.args["num_heads"]
        return heads

    @cached_property
    def kv_heads(self) -> int:
        return self.args["num_key_value_heads"] or self.heads

    @cached_property
    def paged(self) -> bool:
        return self.args["block_table"] is not None

    @cached_property
    def sizes(self) -> QuerySizes:
        return query_sizes(self.query.shape, self.layout, self.heads)

    @cached_property
    def key_sizes(self) -> KvSizes:
        return self.kv_sizes(self.key)

    @cached_property
    def value_sizes(self) -> KvSizes:
        return self.kv_sizes(self.value)

    def kv_sizes(self, tensor: TensorFacts) -> KvSizes:
        """Sizes of a tensor laid out as the key is; D counts the int4 packed eight to an int32."""
        shape, packing = tensor.shape, 8 if tensor.dtype == torch.int32 else 1
        if not self.paged:
            sizes = query_sizes(shape, self.layout, self.kv_heads)
            return KvSizes(sizes.batch, sizes.heads, sizes.seq, sizes.head_dim * packing)
        if len(shape) == 3:
            return KvSizes(shape[0], self.kv_heads, shape[1], shape[2] // self.kv_heads * packing)
        if len(shape) == 4:
            return KvSizes(shape[0], shape[1], shape[2], shape[3] * packing)
        return KvSizes(shape[0], shape[1], shape[3], shape[2] * shape[4] * packing)

    @cached_property
    def batch(self) -> Size | None:
        """Requests in the call; None where packed lengths are missing."""
        if not self.layout.packed:
            return self.sizes.batch
        return self.count("actual_seq_lengths")

    def count(self, lengths: str) -> Size | None:
        """Number of elements of a length argument, None without one."""
        value = self.args.get(lengths)
        if isinstance(value, TensorFacts):
            return value.shape[0] if value.shape else None
        return value.requests if isinstance(value, ListFacts) else None

    @cached_property
    def kv_capacity(self) -> Size:
        """Most tokens that a request's keys can have."""
        table = self.tensor("block_table")
        return self.key_sizes.seq * table.shape[1] if table is not None else self.key_sizes.seq

    @cached_property
    def mask(self) -> TensorFacts | None:
        return self.tensor("atten_mask")

    @cached_property
    def mode(self) -> int:
        mode: int = self.args["sparse_mode"]
        return mode

    @cached_property
    def rope(self) -> bool:
        return self.args["query_rope"] is not None

    @cached_property
    def absorbed(self) -> bool:
        """MLA on the latent cache: a rope part beside a head dim of 512."""
        return self.rope and proven(self.sizes.head_dim == 512)

    @cached_property
    def decode(self) -> bool:
        """One query token per request, which the operator treats by rules of its own."""
        return not self.layout.packed and proven(self.sizes.seq == 1)

    @cached_property
    def prefill(self) -> bool:
        return not self.layout.packed and proven(self.sizes.seq > 1)

    @cached_property
    def int8_cache(self) -> bool:
        return self.key.dtype == torch.int8
