"""A scenario as arguments of FIA, and what the call has to give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .definition import attention, visible
from .fia_scenario import Scenario
from .layouts import batched, garbage, packed, paged, table

TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
V1_NAMES = {
    "q_lens": "actual_seq_lengths",
    "kv_lens": "actual_seq_lengths_kv",
    "heads": "num_heads",
    "scale": "scale",
    "lse": "softmax_lse_flag",
    "key_scale": "key_antiquant_scale",
    "key_offset": "key_antiquant_offset",
    "key_mode": "key_antiquant_mode",
    "value_scale": "value_antiquant_scale",
    "value_offset": "value_antiquant_offset",
    "value_mode": "value_antiquant_mode",
    "out_scale": "quant_scale2",
    "out_offset": "quant_offset2",
}
V2_NAMES = {
    "q_lens": "actual_seq_qlen",
    "kv_lens": "actual_seq_kvlen",
    "heads": "num_query_heads",
    "scale": "softmax_scale",
    "lse": "return_softmax_lse",
    "key_scale": "dequant_scale_key",
    "key_offset": "dequant_offset_key",
    "key_mode": "key_quant_mode",
    "value_scale": "dequant_scale_value",
    "value_offset": "dequant_offset_value",
    "value_mode": "value_quant_mode",
    "out_scale": "quant_scale_out",
    "out_offset": "quant_offset_out",
}


@dataclass
class Request:
    """What one request attends with, in the numbers that the operator sees: keys with rope part and
    prefix."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor
    bias: Tensor | None


@dataclass
class FiaCall:
    args: tuple[Tensor, Tensor, Tensor]
    options: dict[str, Any]
    requests: list[Request]
    sink: Tensor | None
    starts: list[int]
    out_scale: Tensor | None
    out_offset: Tensor | None

    def expected(self, scale: float) -> tuple[list[Tensor], list[Tensor]]:
        """(N, Lq, Dv) and the log-sum-exp (N, Lq) of each request, float64."""
        results = [attention(r.q, r.k, r.v, scale, r.keep, r.bias, self.sink) for r in self.requests]
        return [out for out, _ in results], [lse for _, lse in results]


class Builder:
    """Draws the tensors of a scenario and lays them out."""

    def __init__(self, scenario: Scenario) -> None:
        self.s = scenario
        self.rng = torch.Generator().manual_seed(scenario.seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.rng, dtype=torch.float64).to(self.s.dtype)

    def build(self) -> FiaCall:
        s = self.s
        names = V1_NAMES if s.version == 1 else V2_NAMES
        queries = [self.normal(s.heads, length, s.dim) for length in s.q_lens]
        stored = [self._stored(length) for length in s.kv_lens]
        real = [(k, v) for k, v in stored]
        options: dict[str, Any] = {
            names["heads"]: s.heads,
            "num_key_value_heads": s.kv_heads,
            names["scale"]: s.scale,
            "input_layout": s.layout,
            names["lse"]: s.lse,
        }
        self._lengths(options, names)
        self.block_table, self.blocks = None, 0
        if s.paged != "none":
            self.block_table, self.blocks = table(list(s.kv_lens), s.block_size, 2, self.rng)
            options |= {"block_table": self.block_table, "block_size": s.block_size}
        if s.quant is not None:
            real = self._quantise(options, names, stored)
        query = self._query(queries)
        key, value = self._keys([k for k, _ in stored]), self._keys([v for _, v in stored])
        if s.rope_dim:
            queries, real = self._ropes(options, queries, real)
        if s.prefix:
            real = self._prefix(options, real)
        keeps = self._mask(options, [k.shape[1] for k, _ in real])
        biases = self._bias(options, [k.shape[1] for k, _ in real])
        sink = None
        if s.sink:
            sink = options["learnable_sink"] = self.normal(s.heads)
        out_scale, out_offset = self._output(options, names)
        requests = [
            Request(q, k, v, keep, bias)
            for q, (k, v), keep, bias in zip(queries, real, keeps, biases, strict=True)
        ]
        starts = self.starts(0)
        return FiaCall((query, key, value), options, requests, sink, starts, out_scale, out_offset)

    def starts(self, side: int) -> list[int]:
        """First token of each request in a batched tensor: 0, or where left padding puts it."""
        lens = (self.s.q_lens, self.s.kv_lens)[side]
        if self.s.padding is None or (side == 0 and self.s.one_token):
            return [0] * len(lens)
        return [self.s.capacity[side] - self.s.padding[side] - length for length in lens]

    def _stored(self, length: int) -> tuple[Tensor, Tensor]:
        s = self.s
        if s.quant is None:
            return self.normal(s.kv_heads, length, s.dim), self.normal(s.kv_heads, length, s.value_dim)
        shapes = (s.kv_heads, length, s.dim), (s.kv_heads, length, s.value_dim)
        key, value = (
            torch.randint(-128, 128, shape, generator=self.rng, dtype=torch.int8) for shape in shapes
        )
        return key, value

    def _lengths(self, options: dict[str, Any], names: dict[str, str]) -> None:
        s = self.s
        for name, lens, cumulative in (
            ("q_lens", s.q_lens, s.packed),
            ("kv_lens", s.kv_lens, s.packed and s.paged == "none"),
        ):
            values = torch.tensor(lens).cumsum(0).tolist() if cumulative else list(lens)
            if not s.packed and len(set(values)) == 1 and s.seed % 2:
                values = values[:1]
            as_tensor = s.seed % 3 == 0
            options[names[name]] = torch.tensor(values, dtype=torch.int32) if as_tensor else values
        if s.padding is not None:
            options["query_padding_size"] = torch.tensor([s.padding[0]])
            options["kv_padding_size"] = torch.tensor([s.padding[1]])

    def _query(self, requests: list[Tensor]) -> Tensor:
        if self.s.packed:
            return packed(requests, self.s.query_order)
        return batched(requests, self.s.query_order, self.s.capacity[0], self.starts(0))

    def _keys(self, requests: list[Tensor]) -> Tensor:
        s = self.s
        if self.block_table is not None:
            return paged(requests, s.paged, self.block_table, self.blocks, s.block_size)
        if s.packed:
            return packed(requests, s.query_order)
        return batched(requests, s.query_order, s.capacity[1], self.starts(1))

    def _quantise(
        self, options: dict[str, Any], names: dict[str, str], stored: list[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        """Draw scales for the scenario's mode; returns keys and values as real numbers, float64."""
        s = self.s
        assert s.quant is not None
        sides: list[list[Tensor]] = []
        for side, dim in (("key", s.dim), ("value", s.value_dim)):
            shape = {
                0: (s.kv_heads, 1, dim),
                1: (len(s.kv_lens), self._tokens()),
                2: (s.kv_heads,),
                3: (len(s.kv_lens), s.kv_heads, self._tokens()),
                4: (self.blocks, s.block_size),
                5: (self.blocks, s.kv_heads, s.block_size),
            }[s.quant]
            per_token = s.quant in (1, 3, 4, 5)
            dtype = torch.float32 if per_token else s.dtype
            scale = (torch.rand(shape, generator=self.rng) * 0.02 + 0.005).to(dtype)
            offset = torch.randint(-5, 6, shape, generator=self.rng).to(dtype) if s.quant_offset else None
            options |= {names[f"{side}_scale"]: scale, names[f"{side}_mode"]: s.quant}
            if offset is not None:
                options[names[f"{side}_offset"]] = offset
            tensors = [pair[0 if side == "key" else 1] for pair in stored]
            sides.append([self._real(t, b, scale, offset) for b, t in enumerate(tensors)])
        return list(zip(*sides, strict=True))

    def _tokens(self) -> int:
        if self.block_table is not None:
            return self.block_table.shape[1] * self.s.block_size
        return self.s.capacity[1]

    def _real(self, stored: Tensor, b: int, scale: Tensor, offset: Tensor | None) -> Tensor:
        """(stored + offset) * scale, token by token."""
        out = torch.zeros(stored.shape, dtype=torch.float64)
        for head in range(stored.shape[0]):
            for token in range(stored.shape[1]):
                numbers = stored[head, token].double()
                if offset is not None:
                    numbers = numbers + self._factor(offset, b, head, token)
                out[head, token] = numbers * self._factor(scale, b, head, token)
        return out

    def _factor(self, factor: Tensor, b: int, head: int, token: int) -> Tensor:
        s, position = self.s, token
        if s.quant == 0:
            return factor[head, 0].double()
        if s.quant == 2:
            return factor[head].double()
        if s.quant in (1, 3):
            return (factor[b, position] if s.quant == 1 else factor[b, head, position]).double()
        assert self.block_table is not None
        block, inner = int(self.block_table[b, token // s.block_size]), token % s.block_size
        return (factor[block, inner] if s.quant == 4 else factor[block, head, inner]).double()

    def _ropes(
        self, options: dict[str, Any], queries: list[Tensor], real: list[tuple[Tensor, Tensor]]
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        s = self.s
        q_ropes = [self.normal(s.heads, length, s.rope_dim) for length in s.q_lens]
        k_ropes = [self.normal(s.kv_heads, length, s.rope_dim) for length in s.kv_lens]
        options |= {"query_rope": self._query(q_ropes), "key_rope": self._keys(k_ropes)}
        queries = [torch.cat([q, rope], -1) for q, rope in zip(queries, q_ropes, strict=True)]
        keys = [torch.cat([k, rope.to(k.dtype)], -1) for (k, _), rope in zip(real, k_ropes, strict=True)]
        return queries, [(key, v) for key, (_, v) in zip(keys, real, strict=True)]

    def _prefix(
        self, options: dict[str, Any], real: list[tuple[Tensor, Tensor]]
    ) -> list[tuple[Tensor, Tensor]]:
        s = self.s
        room = s.prefix + s.seed % 4
        sides = []
        for name, dim in (("key", s.dim), ("value", s.value_dim)):
            prefix = self.normal(s.kv_heads, s.prefix, dim)
            options[f"{name}_shared_prefix"] = batched([prefix], s.query_order, room, [0])
            sides.append(prefix)
        if room != s.prefix:
            options["actual_shared_prefix_len"] = [s.prefix]
        return [(torch.cat([sides[0], k], 1), torch.cat([sides[1], v], 1)) for k, v in real]

    def _mask(self, options: dict[str, Any], kv_lens: list[int]) -> list[Tensor]:
        s = self.s
        options |= {"sparse_mode": s.mode, "pre_tokens": s.pre, "next_tokens": s.following}
        keeps = [
            visible(s.mode_in_force, q_len, kv_len, s.pre, s.following)
            for q_len, kv_len in zip(s.q_lens, kv_lens, strict=True)
        ]
        if s.mask == "triangle":
            options["atten_mask"] = TRIANGLE
        elif s.mask == "whole":
            columns = self._tokens() if s.paged != "none" else s.capacity[1]
            batch = len(s.q_lens) if s.seed % 2 else 1
            hide = torch.rand(batch, 1, s.capacity[0], columns, generator=self.rng) < 0.3
            options["atten_mask"] = hide.to([torch.bool, torch.int8, torch.uint8][s.seed % 3])
            q_starts, kv_starts = self.starts(0), self.starts(1)
            for b, keep in enumerate(keeps):
                rows = slice(q_starts[b], q_starts[b] + keep.shape[0])
                keep &= ~hide[b % batch, 0, rows, kv_starts[b] : kv_starts[b] + keep.shape[1]]
        elif s.mask == "tree":
            size = max(s.q_lens) if s.packed else s.capacity[0]
            trees = torch.rand(len(s.q_lens), size, size, generator=self.rng) < 0.5
            for b, keep in enumerate(keeps):
                q_len = keep.shape[0]
                keep[:, keep.shape[1] - q_len :] = ~trees[b, :q_len, :q_len]
            flat = [trees[b, :q, :q].flatten() for b, q in enumerate(s.q_lens)]
            options["atten_mask"] = torch.cat(flat) if s.packed else trees
        return keeps

    def _bias(self, options: dict[str, Any], kv_lens: list[int]) -> list[Tensor | None]:
        s = self.s
        if not s.bias:
            return [None] * len(s.q_lens)
        batch = len(s.q_lens) if s.seed % 2 else 1
        whole = garbage((batch, s.heads, s.capacity[0], s.capacity[1]), s.dtype)
        parts: list[Tensor | None] = []
        shared = self.normal(s.heads, *s.capacity)
        for b, (q_start, kv_start) in enumerate(zip(self.starts(0), self.starts(1), strict=True)):
            rows, keys = slice(q_start, q_start + s.q_lens[b]), slice(kv_start, kv_start + kv_lens[b])
            part = shared[:, rows, keys]
            whole[b % batch, :, rows, keys] = part
            parts.append(part)
        options["pse_shift"] = whole
        return parts

    def _output(self, options: dict[str, Any], names: dict[str, str]) -> tuple[Tensor | None, Tensor | None]:
        s = self.s
        if not s.out_quant:
            return None, None
        shape = (1,) if s.out_quant == "tensor" else (s.heads, s.value_dim)
        scale = torch.rand(shape, generator=self.rng) * 40 + 10
        offset = torch.randint(-9, 10, shape, generator=self.rng).float() if s.seed % 2 else None
        options[names["out_scale"]] = scale
        if offset is not None:
            options[names["out_offset"]] = offset
        if s.out_quant == "channel":
            scale = scale[:, None]
            offset = None if offset is None else offset[:, None]
        return scale, offset
