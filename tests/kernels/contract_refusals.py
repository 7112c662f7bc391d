"""One illegal call per rule: a legal one with one thing wrong, and the argument that the refusal names."""

from __future__ import annotations

from typing import Any

import torch

from .contract_calls import (
    FIA,
    FIA_V2,
    Refusal,
    c8,
    causal,
    dense,
    full_quant,
    mla,
    packed,
    paged,
    table,
    v2,
    zeros,
)
from .contract_refusals_other import OTHER_REFUSALS

F16, F32, I8, I32, I64 = torch.float16, torch.float32, torch.int8, torch.int32, torch.int64
BOOL = torch.bool
A2, P310 = "ascend910b", "ascend310p"


def fia(argument: str, args: dict[str, Any], target: str = "cpu") -> Refusal:
    return Refusal(FIA, args, argument, target)


def mode(sparse_mode: int, mask: torch.Tensor | None = None, **more: Any) -> dict[str, Any]:
    return {"sparse_mode": sparse_mode, "atten_mask": mask, **more}


CAUSAL = mode(3, causal())
MHA = {"n": 4, "kn": 4}
SCALES = {"key_antiquant_scale": zeros(2, 1, 128), "value_antiquant_scale": zeros(2, 1, 128)}
FULL_QUANT_V2 = ("dequant_scale_query", "dequant_scale_key", "dequant_scale_value")
Q5 = {"actual_seq_lengths": [5, 5]}

FIA_REFUSALS: dict[str, Refusal] = {
    "fia.input_layout": fia("input_layout", dense() | {"input_layout": "SBH"}),
    "fia.num_heads.positive": fia("num_heads", dense() | {"num_heads": 0}),
    "fia.num_key_value_heads.sign": fia("num_key_value_heads", dense() | {"num_key_value_heads": -2}),
    "fia.query.rank": fia("query", dense() | {"query": zeros(2, 5, 1024)}),
    "fia.key.rank": fia("key", dense() | {"key": zeros(2, 48, 256), "value": zeros(2, 48, 256)}),
    "fia.value.rank": fia("value", dense() | {"value": zeros(2, 48, 256)}),
    "fia.block_table.form": fia("block_table", paged() | {"block_table": zeros(2, 3, dtype=I64)}),
    "fia.lengths.form.query": fia(
        "actual_seq_lengths", dense() | {"actual_seq_lengths": zeros(2, dtype=F32)}
    ),
    "fia.lengths.form.kv": fia(
        "actual_seq_lengths_kv", dense() | {"actual_seq_lengths_kv": zeros(2, 1, dtype=I64)}
    ),
    "fia.dtype.kv": fia("key", dense() | {"key": zeros(2, 2, 48, 128, dtype=F32)}),
    "fia.dtype.query": fia("query", dense(dtype=F32), A2),
    "fia.device": fia("query", dense() | CAUSAL | {"atten_mask": causal().to("meta")}),
    "fia.rope.pair": fia("query_rope", mla() | {"key_rope": None}),
    "fia.rope.query_shape": fia("query_rope", mla() | {"query_rope": zeros(2, 31, 1, 64)}),
    "fia.rope.key_shape": fia("key_rope", mla() | {"key_rope": zeros(6, 1, 64, 64)}),
    "fia.query.heads": fia("query", dense() | {"num_heads": 16}),
    "fia.num_heads.divisible": fia("num_heads", dense(n=8, kn=3)),
    "fia.num_heads.ratio": fia("num_heads", dense(n=65, kn=1)),
    "fia.key.heads": fia("key", dense() | {"num_key_value_heads": 4}),
    "fia.value.shape": fia("value", dense() | {"value": zeros(2, 2, 47, 128)}),
    "fia.value.head_dim": fia("value", dense() | {"value": zeros(2, 2, 48, 64)}, A2),
    "fia.key.batch": fia("key", dense() | {"key": zeros(3, 2, 48, 128), "value": zeros(3, 2, 48, 128)}),
    "fia.key.head_dim": fia("key", dense() | {"key": zeros(2, 2, 48, 64)}),
    "fia.block_size.axis": fia("block_size", paged() | {"block_size": 64}),
    "fia.block_table.rows": fia("block_table", paged() | {"block_table": table([0, 1, 2])}),
    "fia.lengths.required.query": fia("actual_seq_lengths", packed([3], [3]) | {"actual_seq_lengths": None}),
    "fia.lengths.required.kv": fia("actual_seq_lengths_kv", paged() | {"actual_seq_lengths_kv": None}),
    "fia.lengths.count.query": fia("actual_seq_lengths", dense(b=3) | {"actual_seq_lengths": [5, 5]}),
    "fia.lengths.count.kv": fia(
        "actual_seq_lengths_kv", packed([3, 5], [4, 6]) | {"actual_seq_lengths_kv": [10]}
    ),
    "fia.lengths.limit": fia("actual_seq_lengths", packed([1] * 4097, [1] * 4097), A2),
    "fia.input_layout.one_token": fia("input_layout", dense("BNSD_BSND", q=1), A2),
    "fia.sparse_mode": fia("sparse_mode", dense() | mode(5, causal())),
    "fia.mask.dtype": fia("atten_mask", dense() | mode(0, zeros(1, 1, 5, 48, dtype=F32))),
    "fia.mask.required": fia("atten_mask", dense() | mode(3)),
    "fia.mask.compressed": fia("atten_mask", dense() | mode(3, zeros(1024, 1024, dtype=BOOL))),
    "fia.mask.full": fia("atten_mask", dense() | mode(0, zeros(2, 8, 5, 48, dtype=BOOL))),
    "fia.mask.paged": fia("atten_mask", paged(q=5) | mode(0, zeros(1, 1, 5, 383, dtype=BOOL))),
    "fia.mask.tree": fia("atten_mask", mla(q=4) | mode(9, zeros(2, 4, 5, dtype=BOOL))),
    "fia.mask.packed": fia("sparse_mode", packed([3, 5], [3, 5]) | mode(0, zeros(1, 1, 8, 8, dtype=BOOL))),
    "fia.mask.absorbed": fia("sparse_mode", mla(q=4) | mode(2, causal())),
    "fia.decode.ignored": fia("sparse_mode", dense(q=1) | mode(4, causal(), pre_tokens=7, next_tokens=0)),
    "fia.band.empty": fia("pre_tokens", dense() | mode(4, causal(), pre_tokens=-3, next_tokens=2)),
    "fia.inner_precise": fia("inner_precise", dense(q=1, inner_precise=2)),
    "fia.inner_precise.packed": fia(
        "inner_precise", packed([3], [3], **MHA) | CAUSAL | {"inner_precise": 1}, A2
    ),
    "fia.pse.shape": fia("pse_shift", dense(q=1, pse_shift=zeros(1, 1, 1, 48))),
    "fia.pse.dtype": fia("pse_shift", dense(pse_shift=zeros(1, 8, 5, 48, dtype=F32))),
    "fia.pse.unsupported": fia("pse_shift", packed([3], [3]) | {"pse_shift": zeros(1, 8, 3, 3)}),
    "fia.pse.head_dim": fia("pse_shift", dense(d=72, pse_shift=zeros(1, 8, 5, 48)), A2),
    "fia.bug.paged_decode_mask": fia("atten_mask", paged() | mode(0, zeros(1, 1, 1, 384, dtype=BOOL)), A2),
    "fia.cache.form": fia("key", paged("BnNBsD", layout="BSND")),
    "fia.cache.form_packed": fia(
        "key",
        packed([1, 1], [1, 1], **MHA)
        | {k: v for k, v in paged(**MHA).items() if k not in ("query", "input_layout")},
        A2,
    ),
    "fia.cache.form_nz": fia(
        "key",
        mla()
        | {
            "key": zeros(6, 1, 32, 128, 16),
            "value": zeros(6, 1, 32, 128, 16),
            "key_rope": zeros(6, 1, 4, 128, 16),
        },
        A2,
    ),
    "fia.cache.nz_tile": fia(
        "key", c8() | {"key": zeros(6, 2, 8, 128, 16, dtype=I8), "value": zeros(6, 2, 8, 128, 16, dtype=I8)}
    ),
    "fia.block_size": fia("block_size", paged(size=24, actual_seq_lengths_kv=[24, 30])),
    "fia.block_size.prefill": fia("block_size", paged(q=5, size=64, actual_seq_lengths_kv=[24, 30]), A2),
    "fia.block_size.limit": fia("block_size", paged(size=1024), A2),
    "fia.cache.merged_heads": fia(
        "key", paged("BnBsH", kn=512, n=512, layout="BSND", size=16) | {"actual_seq_lengths_kv": [9, 9]}, A2
    ),
    "fia.cache.exclusive": fia("block_table", paged() | {"kv_padding_size": zeros(1, dtype=I64)}),
    "fia.rope.head_dim": fia("key_rope", mla() | {"key_rope": zeros(6, 1, 128, 32)}),
    "fia.rope.dtype": fia("query_rope", mla() | {"query_rope": zeros(2, 32, 1, 64, dtype=F16)}),
    "fia.rope.size": fia(
        "query_rope", mla() | {"query_rope": zeros(2, 32, 1, 32), "key_rope": zeros(6, 1, 128, 32)}, A2
    ),
    "fia.rope.layout": fia("input_layout", mla(q=4, layout="BNSD_BSND") | CAUSAL, A2),
    "fia.mla.kv_heads": fia(
        "num_key_value_heads",
        mla()
        | {
            "num_key_value_heads": 2,
            "key": zeros(6, 2, 128, 512),
            "value": zeros(6, 2, 128, 512),
            "key_rope": zeros(6, 2, 128, 64),
        },
    ),
    "fia.mla.heads": fia("num_heads", mla(n=12), A2),
    "fia.mla.query_len": fia("query", mla(q=17) | CAUSAL, A2),
    "fia.mla.exclusive": fia("query_rope", mla() | {"quant_scale2": zeros(1, dtype=F32)}),
    "fia.sink.layout": Refusal(FIA_V2, v2(dense()) | {"learnable_sink": zeros(8)}, "learnable_sink"),
    "fia.sink.shape": Refusal(FIA_V2, v2(packed([3], [3])) | {"learnable_sink": zeros(2)}, "learnable_sink"),
    "fia.sink.dtype": Refusal(
        FIA_V2, v2(packed([3], [3])) | {"learnable_sink": zeros(8, dtype=F32)}, "learnable_sink", A2
    ),
    "fia.sink.head_dim": Refusal(
        FIA_V2, v2(packed([3], [3], n=8, kn=8, d=192)) | {"learnable_sink": zeros(8)}, "learnable_sink", A2
    ),
    "fia.sink.exclusive": Refusal(
        FIA_V2,
        v2(packed([3], [3])) | {"learnable_sink": zeros(8), "quant_scale_out": zeros(1, dtype=F32)},
        "learnable_sink",
    ),
    "fia.prefix.pair": fia("key_shared_prefix", dense() | {"key_shared_prefix": zeros(1, 2, 9, 128)}),
    "fia.prefix.shape": fia(
        "key_shared_prefix",
        dense() | {"key_shared_prefix": zeros(2, 2, 9, 128), "value_shared_prefix": zeros(2, 2, 9, 128)},
    ),
    "fia.prefix.unsupported": fia(
        "key_shared_prefix",
        packed([3], [3]) | {"key_shared_prefix": zeros(9, 2, 128), "value_shared_prefix": zeros(9, 2, 128)},
    ),
    "fia.padding.query": fia("query_padding_size", dense() | {"query_padding_size": zeros(1, dtype=I64)}),
    "fia.padding.kv": fia(
        "kv_padding_size", dense() | {"kv_padding_size": zeros(2, dtype=I64), "actual_seq_lengths_kv": [3]}
    ),
    "fia.antiquant.needed": fia("key_antiquant_scale", paged("NZ", dtype=I8)),
    "fia.antiquant.scale_pair": fia("key_antiquant_scale", c8() | {"value_antiquant_scale": None}),
    "fia.antiquant.offset_pair": fia(
        "key_antiquant_offset", c8() | {"value_antiquant_offset": zeros(2, 1, 128)}
    ),
    "fia.antiquant.mode": fia("key_antiquant_mode", c8() | {"key_antiquant_mode": 1}),
    "fia.antiquant.key_scale": fia("key_antiquant_scale", c8() | {"key_antiquant_scale": zeros(2, 64)}),
    "fia.antiquant.value_scale": fia("value_antiquant_scale", c8() | {"value_antiquant_scale": zeros(2, 64)}),
    "fia.antiquant.scale_dtype": fia(
        "key_antiquant_scale", c8() | {"key_antiquant_scale": zeros(2, 1, 128, dtype=F32)}, A2
    ),
    "fia.antiquant.offset": fia(
        "key_antiquant_offset",
        dense(q=1)
        | SCALES
        | {
            "key": zeros(2, 2, 48, 128, dtype=I8),
            "value": zeros(2, 2, 48, 128, dtype=I8),
            "key_antiquant_offset": zeros(256),
            "value_antiquant_offset": zeros(256),
        },
    ),
    "fia.antiquant.nz_offset": fia(
        "key_antiquant_offset",
        c8() | {"key_antiquant_offset": zeros(2, 1, 128), "value_antiquant_offset": zeros(2, 1, 128)},
    ),
    "fia.antiquant.merged": fia("antiquant_scale", paged("NZ", dtype=I8) | {"antiquant_scale": zeros(3)}),
    "fia.antiquant.prefill": fia(
        "key_antiquant_mode",
        c8(q=5)
        | {
            "key_antiquant_mode": 2,
            "value_antiquant_mode": 2,
            "key_antiquant_scale": zeros(2),
            "value_antiquant_scale": zeros(2),
        },
        A2,
    ),
    "fia.full_quant.scales": fia("query", full_quant() | {"dequant_scale1": None}),
    "fia.full_quant.query_mode": Refusal(
        FIA_V2,
        v2(dense(dtype=I8)) | {name: zeros(1, dtype=F32) for name in FULL_QUANT_V2},
        "query_quant_mode",
    ),
    "fia.full_quant.scale_dtype": Refusal(
        FIA_V2,
        v2(dense(dtype=I8)) | {name: zeros(1) for name in FULL_QUANT_V2} | {"query_quant_mode": 3},
        "dequant_scale_query",
    ),
    "fia.full_quant.v1_paged": fia("query", full_quant() | dense(q=1, dtype=I8)),
    "fia.quant.packed": fia("input_layout", packed([3], [3]) | {"quant_scale2": zeros(1, dtype=F32)}, A2),
    "fia.output.scale": fia("quant_scale2", dense(quant_scale2=zeros(128, dtype=F32))),
    "fia.output.offset": fia(
        "quant_offset2", dense(quant_scale2=zeros(1, dtype=F32), quant_offset2=zeros(1))
    ),
    "fia.head_dim.limit": fia("query", dense(d=528), A2),
    "fia.head_dim.aligned": fia("key", dense(d=72), A2),
    "fia.head_dim.packed": fia("query", packed([3], [3], d=96), A2),
    "fia.head_dim.packed_gqa": fia("query", packed([3], [3], d=64), A2),
    "fia.head_dim.packed_192": fia("value", packed([3], [3], d=192), A2),
    "fia.num_heads.limit": fia("num_heads", dense(n=257, kn=257, d=16), A2),
    "fia.batch.limit": fia("query", dense(b=129, n=1, kn=1, d=8, s=3), A2),
    "fia.seq.limit": fia("key", dense(q=1, b=1, n=1, kn=1, d=16, s=262145), A2),
    "fia.input_layout.nbsd": fia("input_layout", dense("BSND_NBSD", q=17), A2),
    "fia.contiguous": fia("query", dense() | {"query": zeros(2, 5, 8, 128).transpose(1, 2)}, A2),
    "fia.bug.packed_no_mask_float16": fia("input_layout", packed([3], [3], dtype=F16), A2),
    "fia.ascend310p.mask": fia("atten_mask", dense() | CAUSAL, P310),
    "fia.ascend310p.paged": fia("block_table", paged(), P310),
    "fia.lengths.integers.query": fia("actual_seq_lengths", dense(actual_seq_lengths=[3.0, 4.0])),
    "fia.lengths.integers.kv": fia("actual_seq_lengths_kv", dense(actual_seq_lengths_kv=[True, 4])),
    "fia.lengths.range.query": fia("actual_seq_lengths", dense(actual_seq_lengths=[6, 5])),
    "fia.lengths.range.kv": fia("actual_seq_lengths_kv", dense(actual_seq_lengths_kv=[-1, 4])),
    "fia.lengths.cumulative.query": fia(
        "actual_seq_lengths", packed([9, 16], [9, 16]) | {"actual_seq_lengths": [9, 24]}
    ),
    "fia.lengths.cumulative.kv": fia(
        "actual_seq_lengths_kv", packed([1, 1], [9, 16]) | {"actual_seq_lengths_kv": [16, 9]}
    ),
    "fia.lengths.causal_packed": fia("actual_seq_lengths_kv", packed([3, 5], [3, 4]) | CAUSAL),
    "fia.lengths.band": fia("pre_tokens", dense() | mode(4, causal(), pre_tokens=-6, next_tokens=20) | Q5),
    "fia.mla.request_len": fia(
        "actual_seq_lengths",
        packed([17], [20], n=8, kn=1, d=512)
        | CAUSAL
        | {"query_rope": zeros(17, 8, 64), "key_rope": zeros(20, 1, 64)},
        A2,
    ),
    "fia.cache.blocks": fia("key", paged(blocks=4) | {"block_table": table([0, 1, 2], [3, 3, 3])}, A2),
    "fia.block_table.ids": fia("block_table", paged(blocks=5)),
    "fia.block_table.columns": fia("block_table", paged() | {"actual_seq_lengths_kv": [300, 385]}),
    "fia.bug.pse_infinite": fia("pse_shift", dense(pse_shift=zeros(1, 8, 5, 48) - float("inf")), A2),
}

REFUSALS = FIA_REFUSALS | OTHER_REFUSALS
