"""One illegal call per rule: a legal one with one thing wrong, and the argument that the refusal names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import contract_calls as calls
from .contract_calls import (
    FIA,
    FIA_V2,
    c8,
    causal,
    dense,
    full_quant,
    lengths,
    mla,
    packed,
    paged,
    table,
    v2,
    zeros,
)

F16, F32, I8, I32, I64 = torch.float16, torch.float32, torch.int8, torch.int32, torch.int64
BOOL = torch.bool
A2, A5, P310 = "ascend910b", "ascend950", "ascend310p"
INDEXER, QUANT_INDEXER = "npu_lightning_indexer", "npu_quant_lightning_indexer"
SFA, KV_SFA = "npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention"
SCATTER, GATHER, KV_NORM = "npu_scatter_pa_kv_cache", "npu_gather_pa_kv_cache", "npu_kv_rmsnorm_rope_cache"
ND, UPDATE, RING = "npu_scatter_nd_update", "npu_attention_update", "npu_ring_attention_update"
BMM, PROLOG, FUSION = "npu_transpose_batchmatmul", "npu_mla_prolog_v3", "npu_fusion_attention"
INTERLEAVE, ROTARY = "npu_interleave_rope", "npu_rotary_mul"


@dataclass(frozen=True)
class Refusal:
    op: str
    args: dict[str, Any]
    argument: str
    target: str = "cpu"
    """Where the rule holds; most hold everywhere."""


def fia(argument: str, args: dict[str, Any], target: str = "cpu") -> Refusal:
    return Refusal(FIA, args, argument, target)


def mode(sparse_mode: int, mask: torch.Tensor | None = None, **more: Any) -> dict[str, Any]:
    return {"sparse_mode": sparse_mode, "atten_mask": mask, **more}


CAUSAL = mode(3, causal())
MHA = {"n": 4, "kn": 4}
ROPE = {"x": zeros(2, 4, 3, 64), "cos": zeros(2, 1, 3, 64), "sin": zeros(2, 1, 3, 64)}
MUL = {"input": zeros(2, 4, 3, 64), "r1": zeros(1, 1, 3, 64), "r2": zeros(1, 1, 3, 64)}
PRODUCT = {"input": zeros(8, 7, 512), "weight": zeros(8, 512, 128)}
SCALES = {"key_antiquant_scale": zeros(2, 1, 128), "value_antiquant_scale": zeros(2, 1, 128)}
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
        v2(dense(dtype=I8))
        | {
            name: zeros(1, dtype=F32)
            for name in ("dequant_scale_query", "dequant_scale_key", "dequant_scale_value")
        },
        "query_quant_mode",
    ),
    "fia.full_quant.v1_paged": fia("query", full_quant() | dense(q=1, dtype=I8)),
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
    "fia.bug.pse_infinite": fia("pse_shift", dense(pse_shift=zeros(1, 8, 5, 48) - float("inf")), A2),
}

OTHER_REFUSALS: dict[str, Refusal] = {
    "sparse.layout_query": Refusal(INDEXER, calls.indexer(layout_query="BNSD"), "layout_query"),
    "sparse.layout_key": Refusal(INDEXER, calls.indexer(layout_key="TND"), "layout_key"),
    "sparse.query.rank": Refusal(INDEXER, calls.indexer(query=zeros(6, 8, 128, dtype=F16)), "query"),
    "sparse.key.rank": Refusal(INDEXER, calls.indexer(key=zeros(40, 1, 128, dtype=F16)), "key"),
    "sparse.empty": Refusal(INDEXER, calls.indexer(q=0), "query"),
    "sparse.lengths.form.query": Refusal(
        INDEXER, calls.indexer(actual_seq_lengths_query=zeros(2, dtype=I64)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.form.key": Refusal(
        SFA, calls.sparse(actual_seq_lengths_kv=zeros(2, dtype=I64)), "actual_seq_lengths_kv"
    ),
    "sparse.lengths.required.query": Refusal(
        INDEXER,
        {
            "query": zeros(6, 8, 128),
            "key": zeros(9, 1, 128),
            "weights": zeros(6, 8),
            "layout_query": "TND",
            "layout_key": "TND",
            "actual_seq_lengths_key": lengths(9),
        },
        "actual_seq_lengths_query",
    ),
    "sparse.lengths.required.key": Refusal(
        INDEXER,
        calls.paged_keys(calls.indexer()) | {"actual_seq_lengths_key": None},
        "actual_seq_lengths_key",
    ),
    "sparse.block_table.form": Refusal(INDEXER, calls.indexer(block_table=table([0], [1])), "block_table"),
    "sparse.lengths.count.query": Refusal(
        INDEXER, calls.indexer(actual_seq_lengths_query=lengths(3)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.count.key": Refusal(
        INDEXER, calls.indexer(actual_seq_lengths_key=lengths(3, 4, 5)), "actual_seq_lengths_key"
    ),
    "sparse.block_table.rows": Refusal(
        INDEXER, calls.paged_keys(calls.indexer()) | {"block_table": table([0, 1])}, "block_table"
    ),
    "sparse.key.batch": Refusal(INDEXER, calls.indexer(key=zeros(3, 20, 1, 128, dtype=F16)), "key"),
    "sparse.key.heads": Refusal(INDEXER, calls.indexer(key=zeros(2, 20, 2, 128, dtype=F16)), "key"),
    "sparse.block_size": Refusal(INDEXER, calls.paged_keys(calls.indexer(), size=24), "key"),
    "sparse.block_size.limit": Refusal(INDEXER, calls.paged_keys(calls.indexer(), size=1040), "key", A2),
    "sparse.sparse_mode": Refusal(INDEXER, calls.indexer(sparse_mode=2), "sparse_mode"),
    "sparse.tokens": Refusal(SFA, calls.sparse(pre_tokens=7), "pre_tokens"),
    "sparse.lengths.query": Refusal(
        INDEXER, calls.indexer(actual_seq_lengths_query=lengths(3, 4)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.key": Refusal(
        INDEXER,
        calls.paged_keys(calls.indexer()) | {"actual_seq_lengths_key": lengths(33, 6)},
        "actual_seq_lengths_key",
    ),
    "sparse.block_table.ids": Refusal(
        INDEXER, calls.paged_keys(calls.indexer()) | {"block_table": table([4, 5], [0, -1])}, "block_table"
    ),
    "indexer.weights": Refusal(INDEXER, calls.indexer(weights=zeros(2, 3, 4, dtype=F16)), "weights"),
    "indexer.head_dim.same": Refusal(INDEXER, calls.indexer(key=zeros(2, 20, 1, 64, dtype=F16)), "key"),
    "indexer.head_dim": Refusal(INDEXER, calls.indexer(d=64), "query", A2),
    "indexer.heads": Refusal(INDEXER, calls.indexer(n=65), "query", A2),
    "indexer.heads.ascend950": Refusal(INDEXER, calls.indexer(n=4), "query", A5),
    "indexer.sparse_count.positive": Refusal(INDEXER, calls.indexer(sparse_count=0), "sparse_count"),
    "indexer.sparse_count": Refusal(INDEXER, calls.indexer(sparse_count=2049), "sparse_count", A2),
    "indexer.device": Refusal(INDEXER, calls.indexer(weights=zeros(2, 3, 8, dtype=F16).to("meta")), "query"),
    "indexer.contiguous": Refusal(
        INDEXER,
        calls.indexer(query=zeros(2, 8, 3, 128, dtype=F16).mT.transpose(2, 3).transpose(1, 2)),
        "query",
        A2,
    ),
    "indexer.dtype.same": Refusal(INDEXER, calls.indexer(weights=zeros(2, 3, 8)), "key"),
    "indexer.dtype": Refusal(
        INDEXER, {k: v.float() if hasattr(v, "float") else v for k, v in calls.indexer().items()}, "query", A2
    ),
    "indexer.return_value": Refusal(
        INDEXER, calls.paged_keys(calls.indexer(return_value=True)), "return_value"
    ),
    "quant_indexer.mode": Refusal(QUANT_INDEXER, calls.quant_indexer(key_quant_mode=1), "query_quant_mode"),
    "quant_indexer.dtype": Refusal(
        QUANT_INDEXER, calls.quant_indexer(key=zeros(2, 20, 1, 128, dtype=F16)), "query"
    ),
    "quant_indexer.dtype.device": Refusal(
        QUANT_INDEXER,
        calls.quant_indexer(
            query=zeros(2, 3, 8, 128).to(torch.float8_e4m3fn),
            key=zeros(2, 20, 1, 128).to(torch.float8_e4m3fn),
        ),
        "query",
        A2,
    ),
    "quant_indexer.query_scale": Refusal(
        QUANT_INDEXER, calls.quant_indexer(query_dequant_scale=zeros(2, 3, dtype=F16)), "query_dequant_scale"
    ),
    "quant_indexer.key_scale": Refusal(
        QUANT_INDEXER, calls.quant_indexer(key_dequant_scale=zeros(2, 19, 1, dtype=F16)), "key_dequant_scale"
    ),
    "sfa.attention_mode": Refusal(SFA, calls.sparse(attention_mode=0), "attention_mode"),
    "sfa.value.none": Refusal(SFA, calls.sparse(value=None), "value"),
    "sfa.dtype": Refusal(SFA, calls.sparse(value=zeros(2, 20, 1, 512, dtype=F16)), "key"),
    "sfa.rope": Refusal(SFA, calls.sparse(key_rope=None), "query_rope"),
    "sfa.head_dim.same": Refusal(
        SFA, calls.sparse(key=zeros(2, 20, 1, 256), value=zeros(2, 20, 1, 256)), "key"
    ),
    "sfa.head_dim": Refusal(SFA, calls.sparse(d=256), "query", A2),
    "sfa.sinks": Refusal(SFA, calls.sparse(sinks=zeros(4)), "sinks"),
    "sfa.sinks.device": Refusal(SFA, calls.sparse(sinks=zeros(4, dtype=F32)), "sinks", A2),
    "sfa.lse.paged": Refusal(
        SFA, calls.paged_keys(calls.sparse(return_softmax_lse=True), "kv"), "return_softmax_lse"
    ),
    "sfa.value": Refusal(SFA, calls.sparse(value=zeros(2, 19, 1, 512)), "value"),
    "sfa.indices": Refusal(SFA, calls.sparse(sparse_indices=zeros(2, 3, 4, dtype=I32)), "sparse_indices"),
    "sfa.dtype.device": Refusal(
        SFA,
        {
            k: v.float() if k != "sparse_indices" and hasattr(v, "float") else v
            for k, v in calls.sparse().items()
        },
        "query",
        A2,
    ),
    "sfa.heads": Refusal(SFA, calls.sparse(n=12), "query", A2),
    "sfa.heads.ascend950": Refusal(SFA, calls.sparse(n=129), "query", A5),
    "sfa.sparse_block_size": Refusal(SFA, calls.sparse(sparse_block_size=3), "sparse_block_size"),
    "sfa.sparse_block_size.ascend950": Refusal(
        SFA, calls.sparse(sparse_block_size=2), "sparse_block_size", A5
    ),
    "sfa.device": Refusal(SFA, calls.sparse(query=zeros(2, 3, 4, 512).to("meta")), "query"),
    "sfa.contiguous": Refusal(SFA, calls.sparse(query=zeros(2, 4, 3, 512).transpose(1, 2)), "query", A2),
    "sfa.indices.values": Refusal(
        SFA, calls.sparse(sparse_indices=lengths(0, -1, 1, -1).repeat(2, 3, 1, 1)), "sparse_indices"
    ),
    "kv_quant_sfa.modes": Refusal(KV_SFA, calls.kv_quant_sparse(quant_scale_repo_mode=0), "key_quant_mode"),
    "kv_quant_sfa.scales": Refusal(
        KV_SFA, calls.kv_quant_sparse(key_dequant_scale=zeros(4, dtype=F32)), "key_dequant_scale"
    ),
    "kv_quant_sfa.row": Refusal(KV_SFA, calls.kv_quant_sparse(key=zeros(2, 20, 1, 576, dtype=I8)), "key"),
    "kv_quant_sfa.dtype": Refusal(KV_SFA, calls.kv_quant_sparse(key=zeros(2, 20, 1, 656)), "key"),
    "kv_quant_sfa.sizes": Refusal(KV_SFA, calls.kv_quant_sparse(tile_size=64), "query", A2),
    "update.lists": Refusal(UPDATE, calls.update(parts=17), "lse"),
    "update.local_out": Refusal(
        UPDATE, calls.update(local_out=[zeros(7, 64), zeros(7, 64), zeros(7, 64, dtype=F16)]), "local_out"
    ),
    "update.lse": Refusal(UPDATE, calls.update(lse=[zeros(7) for _ in range(3)]), "lse"),
    "update.type": Refusal(UPDATE, calls.update(update_type=2), "update_type"),
    "update.head_dim": Refusal(UPDATE, calls.update(d=12), "local_out", A2),
    "ring.layout": Refusal(RING, calls.ring(input_layout="BSH"), "input_layout"),
    "ring.softmax_layout": Refusal(RING, calls.ring(input_softmax_layout="BSH"), "input_softmax_layout"),
    "ring.attn_out": Refusal(RING, calls.ring(cur_attn_out=zeros(4, 2, 16)), "prev_attn_out"),
    "ring.statistics": Refusal(
        RING, calls.ring(cur_softmax_sum=zeros(2, 2, 4, 1, dtype=F32)), "prev_softmax_max"
    ),
    "ring.lengths": Refusal(RING, calls.ring(actual_seq_qlen=lengths(0, 4)), "actual_seq_qlen"),
    "ring.device": Refusal(RING, calls.ring(cur_attn_out=zeros(4, 2, 32).to("meta")), "prev_attn_out"),
    "scatter_pa.cache_mode": Refusal(SCATTER, calls.scatter_pa(cache_mode="ND"), "cache_mode"),
    "scatter_pa.rank": Refusal(SCATTER, calls.scatter_pa(key=zeros(3, 64)), "key"),
    "scatter_pa.dtype": Refusal(SCATTER, calls.scatter_pa(key_cache=zeros(4, 16, 2, 32, dtype=F16)), "key"),
    "scatter_pa.slots.form": Refusal(SCATTER, calls.scatter_pa(slot_mapping=lengths(1, 2)), "slot_mapping"),
    "scatter_pa.compressed": Refusal(
        SCATTER,
        calls.scatter_pa(
            key=zeros(3, 5, 2, 32),
            value=zeros(3, 5, 2, 32),
            key_cache=zeros(4, 16, 1, 32),
            value_cache=zeros(4, 16, 1, 32),
            slot_mapping=zeros(3, 2, dtype=I32),
        ),
        "compress_lens",
    ),
    "scatter_pa.heads": Refusal(SCATTER, calls.scatter_pa(value=zeros(3, 4, 64)), "value"),
    "scatter_pa.cache": Refusal(SCATTER, calls.scatter_pa(cache_mode="PA_NZ"), "key_cache"),
    "scatter_pa.device": Refusal(SCATTER, calls.scatter_pa(slot_mapping=lengths(1, 2, 3).to("meta")), "key"),
    "scatter_pa.contiguous": Refusal(
        SCATTER, calls.scatter_pa(key=zeros(2, 3, 32).transpose(0, 1)), "key", A2
    ),
    "scatter_pa.slots": Refusal(SCATTER, calls.scatter_pa(slot_mapping=lengths(0, -1, 5)), "slot_mapping"),
    "gather_pa.form": Refusal(GATHER, calls.gather_pa(block_tables=lengths(0, 1)), "block_tables"),
    "gather_pa.seq_lens": Refusal(GATHER, calls.gather_pa(is_seq_lens_cumsum=True), "seq_lens"),
    "gather_pa.out": Refusal(GATHER, calls.gather_pa(key=zeros(20, 64)), "key"),
    "gather_pa.device": Refusal(GATHER, calls.gather_pa(seq_lens=lengths(17, 3).to("meta")), "key_cache"),
    "kv_rmsnorm.rank": Refusal(KV_NORM, calls.kv_rmsnorm(kv=zeros(2, 3, 576)), "kv"),
    "kv_rmsnorm.cache_mode": Refusal(KV_NORM, calls.kv_rmsnorm(cache_mode="ND"), "cache_mode"),
    "kv_rmsnorm.width": Refusal(KV_NORM, calls.kv_rmsnorm(kv=zeros(2, 1, 3, 512)), "kv"),
    "kv_rmsnorm.caches": Refusal(
        KV_NORM, calls.kv_rmsnorm(k_cache=zeros(2, 1, 20, 512), ckv_cache=zeros(2, 1, 20, 64)), "k_cache"
    ),
    "kv_rmsnorm.index": Refusal(KV_NORM, calls.kv_rmsnorm(index=zeros(6, dtype=I64)), "index"),
    "kv_rmsnorm.scales": Refusal(
        KV_NORM, calls.kv_rmsnorm(k_rope_scale=zeros(64, dtype=F32)), "k_rope_scale"
    ),
    "kv_rmsnorm.device": Refusal(KV_NORM, calls.kv_rmsnorm(gamma=zeros(512).to("meta")), "kv"),
    "scatter_nd.indices": Refusal(ND, calls.scatter_nd(indices=lengths(0, 1)), "indices"),
    "scatter_nd.updates": Refusal(ND, calls.scatter_nd(updates=zeros(3, 5, 6)), "updates"),
    "scatter_nd.device": Refusal(ND, calls.scatter_nd(updates=zeros(3, 6).to("meta")), "input"),
    "scatter_nd.range": Refusal(
        ND, calls.scatter_nd(indices=torch.tensor([[0, 5], [3, 4], [2, 2]])), "indices"
    ),
    "rms_norm.gamma": Refusal("npu_rms_norm", {"input": zeros(3, 64), "gamma": zeros(32)}, "gamma"),
    "add_rms_norm.inputs": Refusal(
        "npu_add_rms_norm", {"x1": zeros(3, 64), "x2": zeros(2, 64), "gamma": zeros(64)}, "x2"
    ),
    "interleave_rope.rank": Refusal(INTERLEAVE, ROPE | {"cos": zeros(2, 4, 3, 64)}, "x"),
    "interleave_rope.head_dim": Refusal(
        INTERLEAVE, {k: v[..., :32].contiguous() for k, v in ROPE.items()}, "x", A2
    ),
    "rotary_mul.mode": Refusal(ROTARY, MUL | {"rotary_mode": "quarter"}, "rotary_mode"),
    "rotary_mul.form": Refusal(ROTARY, MUL | {"r1": zeros(3, 64)}, "r1"),
    "transpose_bmm.rank": Refusal(BMM, PRODUCT | {"input": zeros(7, 512)}, "input"),
    "transpose_bmm.perm": Refusal(BMM, PRODUCT | {"perm_y": [0, 1, 2]}, "perm_y"),
    "transpose_bmm.bias": Refusal(BMM, PRODUCT | {"bias": zeros(128)}, "bias"),
    "transpose_bmm.sizes": Refusal(BMM, PRODUCT | {"perm_x1": [1, 0, 2]}, "weight"),
    "transpose_bmm.aligned": Refusal(
        BMM, {"input": zeros(8, 7, 24), "weight": zeros(8, 24, 128)}, "weight", A2
    ),
    "mla_prolog.tokens": Refusal(PROLOG, calls.prolog(rope_sin=zeros(1, 5, 64)), "token_x"),
    "mla_prolog.weights": Refusal(PROLOG, calls.prolog(weight_uk=zeros(4, 128, 512)), "weight_uk"),
    "mla_prolog.cache_mode": Refusal(PROLOG, calls.prolog(cache_mode="Norm"), "cache_mode"),
    "mla_prolog.cache_index": Refusal(PROLOG, calls.prolog(cache_index=zeros(5, dtype=I32)), "cache_index"),
    "mla_prolog.heads": Refusal(
        PROLOG, calls.prolog(weight_uk=zeros(12, 128, 512), weight_uq_qr=zeros(96, 12 * 192)), "weight_uk", A2
    ),
    "fusion.layout": Refusal(FUSION, calls.fusion(input_layout="BNSD_BSND"), "input_layout"),
    "fusion.rank": Refusal(FUSION, calls.fusion(key=zeros(2, 2, 9, 64, dtype=F16)), "query"),
    "fusion.heads": Refusal(FUSION, calls.fusion(head_num=3), "head_num"),
    "fusion.mask": Refusal(FUSION, calls.fusion(sparse_mode=3), "atten_mask"),
    "fusion.lengths": Refusal(
        FUSION,
        calls.fusion(query=zeros(5, 4, 64), key=zeros(9, 2, 64), value=zeros(9, 2, 64), input_layout="TND"),
        "actual_seq_qlen",
    ),
    "fusion.keep_prob": Refusal(FUSION, calls.fusion(keep_prob=0.0), "keep_prob"),
    "target.unavailable": Refusal(INDEXER, calls.indexer(), "target", P310),
}

REFUSALS = FIA_REFUSALS | OTHER_REFUSALS
