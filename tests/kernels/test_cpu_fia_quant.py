"""FIA on integers: int8 queries of v1 and v2, the merged and the other forms of antiquant scales, int4."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_lse, assert_rounded
from tests.kernels.oracle.definition import attention, visible
from tests.kernels.oracle.draws import Draw, calls
from tests.kernels.oracle.fia_call import TRIANGLE
from tests.kernels.oracle.int8_definition import int8_attention
from tests.kernels.oracle.layouts import batched, from_lse, from_output, packed, paged, table
from tests.kernels.oracle.properties import EXAMPLES, for_all

ensure_npu_ops()
npu = torch.ops.npu


@dataclass
class Sizes:
    """Requests with at least one query token, and their layout."""

    q_lens: list[int]
    kv_lens: list[int]
    capacity: tuple[int, int]
    heads: int
    kv_heads: int
    layout: str
    options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def draw(draw: Draw, *layouts: str, longest_q: int = 5, kv_heads: int = 2) -> Sizes:
        batch = draw.size(1, 3)
        q_lens = [draw.size(1, longest_q) for _ in range(batch)]
        kv_lens = [draw.size(q_len, 40) for q_len in q_lens]
        capacity = max(*q_lens, 2 if longest_q > 1 else 1), max(kv_lens) + draw.size(0, 3)
        kv_heads = draw.size(1, kv_heads)
        return Sizes(
            q_lens, kv_lens, capacity, kv_heads * draw.one_of(1, 2, 4), kv_heads, draw.one_of(*layouts)
        )

    def query(self, requests: list[Tensor]) -> Tensor:
        if self.layout == "TND":
            return packed(requests, "TND")
        return batched(requests, self.layout, self.capacity[0], [0] * len(requests))

    def keys(self, requests: list[Tensor]) -> Tensor:
        return batched(requests, self.layout, self.capacity[1], [0] * len(requests))

    def masked(self, draw: Draw) -> list[Tensor]:
        """Which keys the rows see; causal half of the time."""
        causal = draw.maybe()
        if causal:
            self.options |= {"sparse_mode": 3, "atten_mask": TRIANGLE}
        lens = zip(self.q_lens, self.kv_lens, strict=True)
        mode = 3 if causal and (self.capacity[0] > 1 or "key_rope" in self.options) else 1
        return [visible(mode, q_len, kv_len, 0, 0) for q_len, kv_len in lens]

    def outputs(self, out: Tensor) -> list[Tensor]:
        return from_output(out, self.layout, self.heads, self.q_lens, [0] * len(self.q_lens))

    def lses(self, lse: Tensor) -> list[Tensor]:
        return from_lse(lse, self.layout == "TND", self.q_lens, [0] * len(self.q_lens))


def int8(draw: Draw, *shape: int, low: int = -128) -> Tensor:
    return draw.integers(*shape, low=low, high=128, dtype=torch.int8)


def device_float(draw: Draw, number: float) -> Tensor:
    """float32, or its bits in the low half of 64."""
    value = torch.tensor([number])
    return value if draw.maybe() else value.view(torch.int32).to(torch.int64).view(torch.uint64)


@EXAMPLES
def test_v1_int8_queries(examples: int) -> None:
    def check(draw: Draw) -> None:
        sizes, dim = Sizes.draw(draw, "BSH", "BNSD", "BSND"), draw.one_of(32, 64)
        q = [int8(draw, sizes.heads, n, dim) for n in sizes.q_lens]
        k = [int8(draw, sizes.kv_heads, n, dim) for n in sizes.kv_lens]
        v = [int8(draw, sizes.kv_heads, n, dim) for n in sizes.kv_lens]
        keep = sizes.masked(draw)
        # Scales as quantised weights have them, exact in float32 so that both sides use the same numbers.
        factors = (2.0**-13, draw.one_of(127.0, 100.0), draw.one_of(2.0**-9, 2.0**-12))
        names = ("dequant_scale1", "quant_scale1", "dequant_scale2")
        options = sizes.options | {
            name: device_float(draw, f) for name, f in zip(names, factors, strict=True)
        }
        options["quant_scale1"] = torch.tensor([factors[1]])
        out_scale = draw.one_of(None, 30.0)
        if out_scale is not None:
            options["quant_scale2"] = torch.tensor([out_scale])
        out, lse = npu.npu_fused_infer_attention_score(
            sizes.query(q), sizes.keys(k), sizes.keys(v), num_heads=sizes.heads, scale=0.5,
            num_key_value_heads=sizes.kv_heads, input_layout=sizes.layout, actual_seq_lengths=sizes.q_lens,
            actual_seq_lengths_kv=sizes.kv_lens, softmax_lse_flag=True, **options,
        )  # fmt: skip
        assert out.dtype == (torch.float16 if out_scale is None else torch.int8)
        rows = zip(q, k, v, keep, sizes.outputs(out), sizes.lses(lse), strict=True)
        for one_q, one_k, one_v, kept, mine, mine_lse in rows:
            want, want_lse, slack = int8_attention(one_q, one_k, one_v, 0.5, kept, factors)
            assert_lse(mine_lse, want_lse, 2e-5)
            if out_scale is None:
                error = (mine.double() - want).abs() - slack * 1.01
                assert error.max() <= torch.finfo(torch.float16).eps * want.abs().max().clamp(min=1e-2)
            elif not slack.any():
                assert_rounded(mine, want * out_scale)

    for_all(calls(lambda draw: draw), examples, check)


@EXAMPLES
def test_v2_int8_queries_of_mla(examples: int) -> None:
    """Latent keys are the values too; the scales multiply the scores, the rope part's included."""

    def check(draw: Draw) -> None:
        sizes = Sizes.draw(draw, "BSH", "BNSD", "BSND", "TND", kv_heads=1, longest_q=draw.one_of(1, 4))
        dim, rope, block_size = 512, 64, 32
        q = [int8(draw, sizes.heads, n, dim) for n in sizes.q_lens]
        q_rope = [draw.normal(sizes.heads, n, rope, dtype=torch.bfloat16) * 30 for n in sizes.q_lens]
        k = [int8(draw, 1, n, dim) for n in sizes.kv_lens]
        k_rope = [draw.normal(1, n, rope, dtype=torch.bfloat16) * 30 for n in sizes.kv_lens]
        q_scale = [draw.uniform(sizes.heads, n, 1, low=0.005, high=0.02) for n in sizes.q_lens]
        kv_scale = draw.uniform(1, low=0.005, high=0.02)
        block_table, blocks = table(sizes.kv_lens, block_size, 2, draw.generator)
        form = draw.one_of("BnBsH", "NZ") if sizes.layout != "BNSD" else "BnBsH"
        cache = paged(k, form, block_table, blocks, block_size)
        rope_cache = paged(k_rope, form, block_table, blocks, block_size)
        scale_layout = {"BSH": "BSND", "TND": "TND"}.get(sizes.layout, sizes.layout)
        laid_out_scale = Sizes(**{**vars(sizes), "layout": scale_layout}).query(q_scale).squeeze(-1)
        laid_out_scale = laid_out_scale.nan_to_num(1.0)
        query, query_rope = sizes.query(q), sizes.query(q_rope).nan_to_num(0.0)
        sizes.options |= {"query_rope": query_rope, "key_rope": rope_cache}
        keep = sizes.masked(draw)
        q_lengths = torch.tensor(sizes.q_lens).cumsum(0).tolist() if sizes.layout == "TND" else sizes.q_lens
        out, lse = npu.npu_fused_infer_attention_score_v2(
            query, cache, cache, num_query_heads=sizes.heads, num_key_value_heads=1, softmax_scale=0.05,
            input_layout=sizes.layout, actual_seq_qlen=q_lengths, actual_seq_kvlen=sizes.kv_lens,
            block_table=block_table, block_size=block_size, dequant_scale_query=laid_out_scale,
            dequant_scale_key=kv_scale, dequant_scale_value=kv_scale, query_quant_mode=3, key_quant_mode=0,
            value_quant_mode=0, return_softmax_lse=True, **sizes.options,
        )  # fmt: skip
        assert out.dtype == torch.bfloat16
        outs, lses = sizes.outputs(out), sizes.lses(lse)
        for b, kept in enumerate(keep):
            real_q = torch.cat([q[b].double(), q_rope[b].double()], -1) * q_scale[b].double()
            real_k = torch.cat([k[b].double(), k_rope[b].double()], -1) * kv_scale.double()
            want, want_lse = attention(real_q, real_k, k[b].double() * kv_scale.double(), 0.05, kept)
            assert_close(outs[b], want, want.bfloat16())
            assert_lse(lses[b], want_lse, 1e-4)

    for_all(calls(lambda draw: draw), examples, check)


def nibbles(values: Tensor) -> Tensor:
    """int4 values (..., 8 * D), eight to an int32, the first in the lowest bits."""
    packed_values = torch.zeros(*values.shape[:-1], values.shape[-1] // 8, dtype=torch.int64)
    for i in range(8):
        packed_values += (values[..., i::8].long() & 15) << (4 * i)
    return torch.where(packed_values >= 2**31, packed_values - 2**32, packed_values).to(torch.int32)


class Antiquant:
    """Scales and offsets of keys and values in one of the forms, and what they make of a stored token."""

    def __init__(self, draw: Draw, sizes: Sizes, dim: int, dtype: torch.dtype) -> None:
        self.options: dict[str, Any] = {}
        heads, batch, tokens = sizes.kv_heads, len(sizes.kv_lens), sizes.capacity[1]
        merged, offset = draw.maybe(), draw.maybe()
        modes = draw.one_of((0, 0), (1, 1)) if merged else draw.one_of((0, 0), (1, 1), (0, 1))
        channel = draw.one_of((heads, 1, dim), (heads, dim), (heads * dim,), (1,))
        if not merged and len(channel) > 1 and draw.maybe():
            channel = (1, *channel)
        self.modes = modes
        self.scales, self.offsets = [], []
        for mode in modes:
            shape = channel if mode == 0 else (batch, tokens)
            kind = dtype if mode == 0 else torch.float32
            self.scales.append(draw.uniform(*shape, low=0.01, high=0.05).to(kind))
            self.offsets.append(draw.integers(*shape, low=-4, high=5).to(kind) if offset else None)
        if merged:
            # (2,) holds one number each.
            join = torch.cat if self.scales[0].shape == (1,) else torch.stack
            self.options = {"antiquant_scale": join(self.scales), "antiquant_mode": modes[0]}
            if offset:
                self.options["antiquant_offset"] = join(self.offsets)
            return
        for side, mode, scale, shift in zip(("key", "value"), modes, self.scales, self.offsets, strict=True):
            self.options |= {f"{side}_antiquant_scale": scale, f"{side}_antiquant_mode": mode}
            if shift is not None:
                self.options[f"{side}_antiquant_offset"] = shift

    def real(self, stored: Tensor, side: int, b: int) -> Tensor:
        """(N_kv, L, D) as real numbers."""
        scale, offset = self.scales[side], self.offsets[side]
        values = stored.double()
        if offset is not None:
            values = values + self._spread(offset, stored, side, b)
        return values * self._spread(scale, stored, side, b)

    def _spread(self, factor: Tensor, stored: Tensor, side: int, b: int) -> Tensor:
        if self.modes[side] == 1:
            return factor[b, : stored.shape[1]].double().view(1, -1, 1)
        if factor.numel() == 1:
            return factor.double().reshape(())
        heads, _, dim = stored.shape
        return factor.double().reshape(heads, 1, dim)


@EXAMPLES
def test_v1_antiquant_of_int8_and_int4(examples: int) -> None:
    def check(draw: Draw) -> None:
        sizes, dim = Sizes.draw(draw, "BSH", "BNSD", "BSND", longest_q=draw.one_of(1, 5)), draw.one_of(32, 64)
        dtype, int4 = draw.one_of(torch.float32, torch.bfloat16, torch.float16), draw.maybe()
        q = [draw.normal(sizes.heads, n, dim, dtype=dtype) for n in sizes.q_lens]
        low, high = (-8, 8) if int4 else (-128, 128)
        k, v = (
            [draw.integers(sizes.kv_heads, n, dim, low=low, high=high) for n in sizes.kv_lens]
            for _ in range(2)
        )
        antiquant = Antiquant(draw, sizes, dim, dtype)
        keep = sizes.masked(draw)
        key, value = (
            sizes.keys([nibbles(t) if int4 else t.to(torch.int8) for t in tensors]) for tensors in (k, v)
        )
        out, _ = npu.npu_fused_infer_attention_score(
            sizes.query(q), key, value, num_heads=sizes.heads, scale=0.2, num_key_value_heads=sizes.kv_heads,
            input_layout=sizes.layout, actual_seq_lengths=sizes.q_lens, actual_seq_lengths_kv=sizes.kv_lens,
            **antiquant.options, **sizes.options,
        )  # fmt: skip
        assert out.dtype == dtype
        for b, mine in enumerate(sizes.outputs(out)):
            real_k, real_v = antiquant.real(k[b], 0, b), antiquant.real(v[b], 1, b)
            want, _ = attention(q[b], real_k, real_v, 0.2, keep[b])
            assert_close(mine, want, want.to(dtype))

    for_all(calls(lambda draw: draw), examples, check)
