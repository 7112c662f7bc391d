"""Illegal calls of all operators but FIA, one per rule."""

from __future__ import annotations

import torch

from . import contract_calls_around as around
from . import contract_calls_sparse as sparse
from .contract_calls import Refusal, lengths, table, zeros

F16, F32, I8, I32, I64 = torch.float16, torch.float32, torch.int8, torch.int32, torch.int64
A2, A5, P310 = "ascend910b", "ascend950", "ascend310p"
INDEXER, QUANT_INDEXER = "npu_lightning_indexer", "npu_quant_lightning_indexer"
SFA, KV_SFA = "npu_sparse_flash_attention", "npu_kv_quant_sparse_flash_attention"
SCATTER, GATHER, KV_NORM = "npu_scatter_pa_kv_cache", "npu_gather_pa_kv_cache", "npu_kv_rmsnorm_rope_cache"
ND, UPDATE, RING = "npu_scatter_nd_update", "npu_attention_update", "npu_ring_attention_update"
BMM, PROLOG, FUSION = "npu_transpose_batchmatmul", "npu_mla_prolog_v3", "npu_fusion_attention"
INTERLEAVE, ROTARY = "npu_interleave_rope", "npu_rotary_mul"

ROPE = {"x": zeros(2, 4, 3, 64), "cos": zeros(2, 1, 3, 64), "sin": zeros(2, 1, 3, 64)}
MUL = {"input": zeros(2, 4, 3, 64), "r1": zeros(1, 1, 3, 64), "r2": zeros(1, 1, 3, 64)}
PRODUCT = {"input": zeros(8, 7, 512), "weight": zeros(8, 512, 128)}

OTHER_REFUSALS: dict[str, Refusal] = {
    "sparse.layout_query": Refusal(INDEXER, sparse.indexer(layout_query="BNSD"), "layout_query"),
    "sparse.layout_key": Refusal(INDEXER, sparse.indexer(layout_key="TND"), "layout_key"),
    "sparse.query.rank": Refusal(INDEXER, sparse.indexer(query=zeros(6, 8, 128, dtype=F16)), "query"),
    "sparse.key.rank": Refusal(INDEXER, sparse.indexer(key=zeros(40, 1, 128, dtype=F16)), "key"),
    "sparse.empty": Refusal(INDEXER, sparse.indexer(q=0), "query"),
    "sparse.lengths.form.query": Refusal(
        INDEXER, sparse.indexer(actual_seq_lengths_query=zeros(2, dtype=I64)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.form.key": Refusal(
        SFA, sparse.sparse(actual_seq_lengths_kv=zeros(2, dtype=I64)), "actual_seq_lengths_kv"
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
        sparse.paged_keys(sparse.indexer()) | {"actual_seq_lengths_key": None},
        "actual_seq_lengths_key",
    ),
    "sparse.block_table.form": Refusal(INDEXER, sparse.indexer(block_table=table([0], [1])), "block_table"),
    "sparse.lengths.count.query": Refusal(
        INDEXER, sparse.indexer(actual_seq_lengths_query=lengths(3)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.count.key": Refusal(
        INDEXER, sparse.indexer(actual_seq_lengths_key=lengths(3, 4, 5)), "actual_seq_lengths_key"
    ),
    "sparse.block_table.rows": Refusal(
        INDEXER, sparse.paged_keys(sparse.indexer()) | {"block_table": table([0, 1])}, "block_table"
    ),
    "sparse.key.batch": Refusal(INDEXER, sparse.indexer(key=zeros(3, 20, 1, 128, dtype=F16)), "key"),
    "sparse.key.heads": Refusal(INDEXER, sparse.indexer(key=zeros(2, 20, 2, 128, dtype=F16)), "key"),
    "sparse.block_size": Refusal(INDEXER, sparse.paged_keys(sparse.indexer(), size=24), "key"),
    "sparse.block_size.limit": Refusal(INDEXER, sparse.paged_keys(sparse.indexer(), size=1040), "key", A2),
    "sparse.sparse_mode": Refusal(INDEXER, sparse.indexer(sparse_mode=2), "sparse_mode"),
    "sparse.tokens": Refusal(SFA, sparse.sparse(pre_tokens=7), "pre_tokens"),
    "sparse.lengths.query": Refusal(
        INDEXER, sparse.indexer(actual_seq_lengths_query=lengths(3, 4)), "actual_seq_lengths_query"
    ),
    "sparse.lengths.key": Refusal(
        INDEXER, sparse.indexer(actual_seq_lengths_key=lengths(21, 6)), "actual_seq_lengths_key"
    ),
    "sparse.block_table.columns": Refusal(
        INDEXER,
        sparse.paged_keys(sparse.indexer()) | {"actual_seq_lengths_key": lengths(33, 6)},
        "block_table",
    ),
    "sparse.block_table.ids": Refusal(
        INDEXER, sparse.paged_keys(sparse.indexer()) | {"block_table": table([4, 5], [0, -1])}, "block_table"
    ),
    "indexer.weights": Refusal(INDEXER, sparse.indexer(weights=zeros(2, 3, 4, dtype=F16)), "weights"),
    "indexer.head_dim.same": Refusal(INDEXER, sparse.indexer(key=zeros(2, 20, 1, 64, dtype=F16)), "key"),
    "indexer.head_dim": Refusal(INDEXER, sparse.indexer(d=64), "query", A2),
    "indexer.heads": Refusal(INDEXER, sparse.indexer(n=65), "query", A2),
    "indexer.heads.ascend950": Refusal(INDEXER, sparse.indexer(n=4), "query", A5),
    "indexer.sparse_count.positive": Refusal(INDEXER, sparse.indexer(sparse_count=0), "sparse_count"),
    "indexer.sparse_count": Refusal(INDEXER, sparse.indexer(sparse_count=2049), "sparse_count", A2),
    "indexer.device": Refusal(INDEXER, sparse.indexer(weights=zeros(2, 3, 8, dtype=F16).to("meta")), "query"),
    "indexer.contiguous": Refusal(
        INDEXER,
        sparse.indexer(query=zeros(2, 8, 3, 128, dtype=F16).mT.transpose(2, 3).transpose(1, 2)),
        "query",
        A2,
    ),
    "indexer.dtype.same": Refusal(INDEXER, sparse.indexer(weights=zeros(2, 3, 8)), "key"),
    "indexer.dtype": Refusal(
        INDEXER,
        {k: v.float() if hasattr(v, "float") else v for k, v in sparse.indexer().items()},
        "query",
        A2,
    ),
    "indexer.return_value": Refusal(
        INDEXER, sparse.paged_keys(sparse.indexer(return_value=True)), "return_value"
    ),
    "quant_indexer.mode": Refusal(QUANT_INDEXER, sparse.quant_indexer(key_quant_mode=1), "query_quant_mode"),
    "quant_indexer.dtype": Refusal(
        QUANT_INDEXER, sparse.quant_indexer(key=zeros(2, 20, 1, 128, dtype=F16)), "query"
    ),
    "quant_indexer.dtype.device": Refusal(
        QUANT_INDEXER,
        sparse.quant_indexer(
            query=zeros(2, 3, 8, 128).to(torch.float8_e4m3fn),
            key=zeros(2, 20, 1, 128).to(torch.float8_e4m3fn),
        ),
        "query",
        A2,
    ),
    "quant_indexer.query_scale": Refusal(
        QUANT_INDEXER, sparse.quant_indexer(query_dequant_scale=zeros(2, 3, dtype=F16)), "query_dequant_scale"
    ),
    "quant_indexer.key_scale": Refusal(
        QUANT_INDEXER, sparse.quant_indexer(key_dequant_scale=zeros(2, 19, 1, dtype=F16)), "key_dequant_scale"
    ),
    "sfa.attention_mode": Refusal(SFA, sparse.sparse(attention_mode=0), "attention_mode"),
    "sfa.value.none": Refusal(SFA, sparse.sparse(value=None), "value"),
    "sfa.dtype": Refusal(SFA, sparse.sparse(value=zeros(2, 20, 1, 512, dtype=F16)), "key"),
    "sfa.rope": Refusal(SFA, sparse.sparse(key_rope=None), "query_rope"),
    "sfa.head_dim.same": Refusal(
        SFA, sparse.sparse(key=zeros(2, 20, 1, 256), value=zeros(2, 20, 1, 256)), "key"
    ),
    "sfa.head_dim": Refusal(SFA, sparse.sparse(d=256), "query", A2),
    "sfa.sinks": Refusal(SFA, sparse.sparse(sinks=zeros(4)), "sinks"),
    "sfa.sinks.device": Refusal(SFA, sparse.sparse(sinks=zeros(4, dtype=F32)), "sinks", A2),
    "sfa.lse.paged": Refusal(
        SFA, sparse.paged_keys(sparse.sparse(return_softmax_lse=True), "kv"), "return_softmax_lse"
    ),
    "sfa.value": Refusal(SFA, sparse.sparse(value=zeros(2, 19, 1, 512)), "value"),
    "sfa.indices": Refusal(SFA, sparse.sparse(sparse_indices=zeros(2, 3, 4, dtype=I32)), "sparse_indices"),
    "sfa.dtype.device": Refusal(
        SFA,
        {
            k: v.float() if k != "sparse_indices" and hasattr(v, "float") else v
            for k, v in sparse.sparse().items()
        },
        "query",
        A2,
    ),
    "sfa.heads": Refusal(SFA, sparse.sparse(n=12), "query", A2),
    "sfa.heads.ascend950": Refusal(SFA, sparse.sparse(n=129), "query", A5),
    "sfa.sparse_block_size": Refusal(SFA, sparse.sparse(sparse_block_size=3), "sparse_block_size"),
    "sfa.sparse_block_size.ascend950": Refusal(
        SFA, sparse.sparse(sparse_block_size=2), "sparse_block_size", A5
    ),
    "sfa.device": Refusal(SFA, sparse.sparse(query=zeros(2, 3, 4, 512).to("meta")), "query"),
    "sfa.contiguous": Refusal(SFA, sparse.sparse(query=zeros(2, 4, 3, 512).transpose(1, 2)), "query", A2),
    "sfa.indices.values": Refusal(
        SFA, sparse.sparse(sparse_indices=lengths(0, -1, 1, -1).repeat(2, 3, 1, 1)), "sparse_indices"
    ),
    "kv_quant_sfa.modes": Refusal(KV_SFA, sparse.kv_quant_sparse(quant_scale_repo_mode=0), "key_quant_mode"),
    "kv_quant_sfa.scales": Refusal(
        KV_SFA, sparse.kv_quant_sparse(key_dequant_scale=zeros(4, dtype=F32)), "key_dequant_scale"
    ),
    "kv_quant_sfa.row": Refusal(KV_SFA, sparse.kv_quant_sparse(key=zeros(2, 20, 1, 576, dtype=I8)), "key"),
    "kv_quant_sfa.dtype": Refusal(KV_SFA, sparse.kv_quant_sparse(key=zeros(2, 20, 1, 656)), "key"),
    "kv_quant_sfa.sizes": Refusal(KV_SFA, sparse.kv_quant_sparse(tile_size=64), "query", A2),
    "update.lists": Refusal(UPDATE, around.update(parts=17), "lse"),
    "update.local_out": Refusal(
        UPDATE, around.update(local_out=[zeros(7, 64), zeros(7, 64), zeros(7, 64, dtype=F16)]), "local_out"
    ),
    "update.lse": Refusal(UPDATE, around.update(lse=[zeros(7) for _ in range(3)]), "lse"),
    "update.type": Refusal(UPDATE, around.update(update_type=2), "update_type"),
    "update.head_dim": Refusal(UPDATE, around.update(d=12), "local_out", A2),
    "ring.layout": Refusal(RING, around.ring(input_layout="BSH"), "input_layout"),
    "ring.softmax_layout": Refusal(RING, around.ring(input_softmax_layout="BSH"), "input_softmax_layout"),
    "ring.attn_out": Refusal(RING, around.ring(cur_attn_out=zeros(4, 2, 16)), "prev_attn_out"),
    "ring.statistics": Refusal(
        RING, around.ring(cur_softmax_sum=zeros(2, 2, 4, 1, dtype=F32)), "prev_softmax_max"
    ),
    "ring.lengths": Refusal(RING, around.ring(actual_seq_qlen=lengths(0, 4)), "actual_seq_qlen"),
    "ring.device": Refusal(RING, around.ring(cur_attn_out=zeros(4, 2, 32).to("meta")), "prev_attn_out"),
    "scatter_pa.cache_mode": Refusal(SCATTER, around.scatter_pa(cache_mode="ND"), "cache_mode"),
    "scatter_pa.rank": Refusal(SCATTER, around.scatter_pa(key=zeros(3, 64)), "key"),
    "scatter_pa.dtype": Refusal(SCATTER, around.scatter_pa(key_cache=zeros(4, 16, 2, 32, dtype=F16)), "key"),
    "scatter_pa.slots.form": Refusal(SCATTER, around.scatter_pa(slot_mapping=lengths(1, 2)), "slot_mapping"),
    "scatter_pa.compressed": Refusal(
        SCATTER,
        around.scatter_pa(
            key=zeros(3, 5, 2, 32),
            value=zeros(3, 5, 2, 32),
            key_cache=zeros(4, 16, 1, 32),
            value_cache=zeros(4, 16, 1, 32),
            slot_mapping=zeros(3, 2, dtype=I32),
        ),
        "compress_lens",
    ),
    "scatter_pa.heads": Refusal(SCATTER, around.scatter_pa(value=zeros(3, 4, 64)), "value"),
    "scatter_pa.cache": Refusal(SCATTER, around.scatter_pa(cache_mode="PA_NZ"), "key_cache"),
    "scatter_pa.device": Refusal(SCATTER, around.scatter_pa(slot_mapping=lengths(1, 2, 3).to("meta")), "key"),
    "scatter_pa.contiguous": Refusal(
        SCATTER, around.scatter_pa(key=zeros(2, 3, 32).transpose(0, 1)), "key", A2
    ),
    "scatter_pa.slots": Refusal(SCATTER, around.scatter_pa(slot_mapping=lengths(0, -2, 5)), "slot_mapping"),
    "gather_pa.form": Refusal(GATHER, around.gather_pa(block_tables=lengths(0, 1)), "block_tables"),
    "gather_pa.seq_lens": Refusal(GATHER, around.gather_pa(is_seq_lens_cumsum=True), "seq_lens"),
    "gather_pa.out": Refusal(GATHER, around.gather_pa(key=zeros(20, 64)), "key"),
    "gather_pa.device": Refusal(GATHER, around.gather_pa(seq_lens=lengths(17, 3).to("meta")), "key_cache"),
    "kv_rmsnorm.rank": Refusal(KV_NORM, around.kv_rmsnorm(kv=zeros(2, 3, 576)), "kv"),
    "kv_rmsnorm.cache_mode": Refusal(KV_NORM, around.kv_rmsnorm(cache_mode="ND"), "cache_mode"),
    "kv_rmsnorm.width": Refusal(KV_NORM, around.kv_rmsnorm(kv=zeros(2, 1, 3, 512)), "kv"),
    "kv_rmsnorm.caches": Refusal(
        KV_NORM, around.kv_rmsnorm(k_cache=zeros(2, 1, 20, 512), ckv_cache=zeros(2, 1, 20, 64)), "k_cache"
    ),
    "kv_rmsnorm.index": Refusal(KV_NORM, around.kv_rmsnorm(index=zeros(6, dtype=I64)), "index"),
    "kv_rmsnorm.scales": Refusal(
        KV_NORM, around.kv_rmsnorm(k_rope_scale=zeros(64, dtype=F32)), "k_rope_scale"
    ),
    "kv_rmsnorm.device": Refusal(KV_NORM, around.kv_rmsnorm(gamma=zeros(512).to("meta")), "kv"),
    "scatter_nd.indices": Refusal(ND, around.scatter_nd(indices=lengths(0, 1)), "indices"),
    "scatter_nd.updates": Refusal(ND, around.scatter_nd(updates=zeros(3, 5, 6)), "updates"),
    "scatter_nd.device": Refusal(ND, around.scatter_nd(updates=zeros(3, 6).to("meta")), "input"),
    "scatter_nd.range": Refusal(
        ND, around.scatter_nd(indices=torch.tensor([[0, 5], [3, 4], [2, 2]])), "indices"
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
    "mla_prolog.tokens": Refusal(PROLOG, around.prolog(rope_sin=zeros(1, 5, 64)), "token_x"),
    "mla_prolog.dtype": Refusal(
        PROLOG, around.prolog(token_x=zeros(5, 256, dtype=torch.float16)), "token_x", A2
    ),
    "mla_prolog.weights": Refusal(PROLOG, around.prolog(weight_uk=zeros(4, 128, 512)), "weight_uk"),
    "mla_prolog.cache_mode": Refusal(PROLOG, around.prolog(cache_mode="Norm"), "cache_mode"),
    "mla_prolog.cache_index": Refusal(PROLOG, around.prolog(cache_index=zeros(5, dtype=I32)), "cache_index"),
    "mla_prolog.heads": Refusal(
        PROLOG,
        around.prolog(weight_uk=zeros(12, 128, 512), weight_uq_qr=zeros(96, 12 * 192)),
        "weight_uk",
        A2,
    ),
    "fusion.layout": Refusal(FUSION, around.fusion(input_layout="BNSD_BSND"), "input_layout"),
    "fusion.rank": Refusal(FUSION, around.fusion(key=zeros(2, 2, 9, 64, dtype=F16)), "query"),
    "fusion.heads": Refusal(FUSION, around.fusion(head_num=3), "head_num"),
    "fusion.mask": Refusal(FUSION, around.fusion(sparse_mode=3), "atten_mask"),
    "fusion.lengths": Refusal(
        FUSION,
        around.fusion(query=zeros(5, 4, 64), key=zeros(9, 2, 64), value=zeros(9, 2, 64), input_layout="TND"),
        "actual_seq_qlen",
    ),
    "fusion.keep_prob": Refusal(FUSION, around.fusion(keep_prob=0.0), "keep_prob"),
    "target.unavailable": Refusal(INDEXER, sparse.indexer(), "target", P310),
}
