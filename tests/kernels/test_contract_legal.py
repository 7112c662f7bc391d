"""What the contract accepts: one call of every kind that torch_npu's documentation allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from npu_compile.kernels.contract import check
from npu_compile.kernels.targets import Target

from . import contract_calls as calls
from . import contract_calls_around as around
from . import contract_calls_sparse as sparse
from .contract_calls import FIA, FIA_V2, causal, zeros

EVERYWHERE = ("cpu", "ascend910b", "ascend910_93", "ascend950")
CPU = ("cpu",)

LEGAL: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "bidirectional": (FIA, calls.dense(), (*EVERYWHERE, "ascend310p")),
    "causal from the left": (FIA, calls.dense(sparse_mode=2, atten_mask=causal()), EVERYWHERE),
    "causal from the right": (FIA, calls.dense("BSH", sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "band": (
        FIA,
        calls.dense("BSND", sparse_mode=4, pre_tokens=7, next_tokens=0, atten_mask=causal()),
        EVERYWHERE,
    ),
    "own mask": (FIA, calls.dense(atten_mask=zeros(2, 1, 5, 48, dtype=torch.bool)), EVERYWHERE),
    "own mask for all": (
        FIA,
        calls.dense(sparse_mode=1, atten_mask=zeros(1, 1, 5, 48, dtype=torch.int8)),
        EVERYWHERE,
    ),
    "two-dimensional mask": (FIA, calls.dense(atten_mask=zeros(5, 48, dtype=torch.uint8)), EVERYWHERE),
    "mask rounded up": (FIA, calls.dense(s=50, atten_mask=zeros(1, 32, 64, dtype=torch.bool)), EVERYWHERE),
    "decode": (FIA, calls.dense(q=1, actual_seq_lengths_kv=[0, 48]), EVERYWHERE),
    "decode of one length": (FIA, calls.dense(q=1, actual_seq_lengths_kv=[7]), EVERYWHERE),
    "decode with a mask": (FIA, calls.dense(q=1, atten_mask=zeros(2, 48, dtype=torch.bool)), EVERYWHERE),
    "decode in mode 3": (FIA, calls.dense(q=1, sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "decode in a window that never cuts": (
        FIA,
        calls.dense(q=1, sparse_mode=4, pre_tokens=47, next_tokens=0, atten_mask=causal()),
        EVERYWHERE,
    ),
    "query lengths at decode are ignored": (FIA, calls.dense(q=1, actual_seq_lengths=[9, 9]), EVERYWHERE),
    "more lengths than requests": (FIA, calls.dense(actual_seq_lengths_kv=[4, 5, 6]), EVERYWHERE),
    "empty keys": (FIA, calls.dense(s=0), EVERYWHERE),
    "shift": (FIA, calls.dense(pse_shift=zeros(1, 8, 5, 48)), EVERYWHERE),
    "output in BSND": (FIA, calls.dense("BNSD_BSND"), EVERYWHERE),
    "output in NBSD": (FIA, calls.dense("BSH_NBSD"), EVERYWHERE),
    "lse": (FIA, calls.dense(softmax_lse_flag=True), EVERYWHERE),
    "packed": (FIA, calls.packed([3, 5], [3, 5], sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "packed, chunked": (FIA, calls.packed([3, 1], [9, 8], sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "packed without a mask": (FIA, calls.packed([3, 0, 5], [4, 0, 2]), EVERYWHERE),
    "packed 192": (FIA, calls.packed([3, 5], [3, 5], n=8, kn=8, d=192, dv=128), EVERYWHERE),
    "packed 64, a K/V head per query head": (FIA, calls.packed([3], [3], n=8, kn=8, d=64), EVERYWHERE),
    "packed, heads first": (FIA, calls.packed([3, 5], [3, 5], layout="NTD_TND"), EVERYWHERE),
    "packed, split rope": (
        FIA,
        calls.packed([3, 5], [3, 5], n=8, kn=8, query_rope=zeros(8, 8, 64), key_rope=zeros(8, 8, 64)),
        EVERYWHERE,
    ),
    "packed and paged": (
        FIA,
        calls.packed([1, 1], [1, 1])
        | {k: v for k, v in calls.paged("BnBsH").items() if k not in ("query", "input_layout")},
        EVERYWHERE,
    ),
    "sink": (
        FIA_V2,
        calls.v2(calls.packed([3, 5], [3, 5], sparse_mode=3, atten_mask=causal()))
        | {"learnable_sink": zeros(8)},
        EVERYWHERE,
    ),
    "paged decode": (FIA, calls.paged(), EVERYWHERE),
    "paged decode, merged heads": (FIA, calls.paged("BnBsH", layout="BSND"), EVERYWHERE),
    "paged prefill": (FIA, calls.paged(q=5, sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "absorbed MLA": (FIA, calls.mla(), EVERYWHERE),
    "absorbed MLA in v2": (FIA_V2, calls.v2(calls.mla(layout="BNSD_NBSD")), EVERYWHERE),
    "absorbed MLA of 128 heads": (FIA, calls.mla(n=128, layout="BSH"), EVERYWHERE),
    "absorbed MLA of several tokens": (FIA, calls.mla(q=4, sparse_mode=3, atten_mask=causal()), EVERYWHERE),
    "int8 cache": (FIA, calls.c8(), EVERYWHERE),
    "int8 all": (FIA, calls.full_quant(), EVERYWHERE),
    "int8 output": (FIA, calls.dense(quant_scale2=zeros(8 * 128, dtype=torch.float32)), EVERYWHERE),
    "shared prefix": (
        FIA,
        calls.dense(key_shared_prefix=zeros(1, 2, 9, 128), value_shared_prefix=zeros(1, 2, 9, 128)),
        EVERYWHERE,
    ),
    "left padding": (
        FIA,
        calls.dense(kv_padding_size=zeros(1, dtype=torch.int64), actual_seq_lengths_kv=[3, 4]),
        EVERYWHERE,
    ),
    "float32 of any size": (FIA, calls.dense(d=17, n=3, kn=1, dtype=torch.float32), CPU),
    "packed of any size": (FIA, calls.packed([3, 5], [3, 5], d=40, dv=24), CPU),
    "12 latent heads": (FIA, calls.mla(n=12), CPU),
    "a mask on paged decode": (
        FIA,
        calls.paged(atten_mask=zeros(1, 1, 1, 384, dtype=torch.bool)),
        CPU,
    ),
    "indexer": ("npu_lightning_indexer", sparse.indexer(), EVERYWHERE),
    "indexer, paged": ("npu_lightning_indexer", sparse.paged_keys(sparse.indexer()), EVERYWHERE),
    "quantised indexer": ("npu_quant_lightning_indexer", sparse.quant_indexer(), EVERYWHERE),
    "sparse attention": ("npu_sparse_flash_attention", sparse.sparse(), EVERYWHERE),
    "sparse attention, indices of rows beyond the query lengths": (
        "npu_sparse_flash_attention",
        sparse.sparse(
            q=2,
            sparse_indices=torch.tensor([[0, 1], [7, 7], [99, -9], [5, 5]], dtype=torch.int32).view(
                2, 2, 1, 2
            ),
            actual_seq_lengths_query=torch.tensor([1, 0], dtype=torch.int32),
        ),
        EVERYWHERE,
    ),
    "sparse attention, paged": (
        "npu_sparse_flash_attention",
        sparse.paged_keys(sparse.sparse(), "kv"),
        EVERYWHERE,
    ),
    "sparse attention, quantised": (
        "npu_kv_quant_sparse_flash_attention",
        sparse.kv_quant_sparse(),
        EVERYWHERE,
    ),
    "merge": ("npu_attention_update", around.update(), EVERYWHERE),
    "ring merge": ("npu_ring_attention_update", around.ring(), EVERYWHERE),
    "cache write": ("npu_scatter_pa_kv_cache", around.scatter_pa(), EVERYWHERE),
    "cache write in NZ": (
        "npu_scatter_pa_kv_cache",
        around.scatter_pa(key_cache=zeros(4, 4, 16, 16), value_cache=zeros(4, 8, 16, 16), cache_mode="PA_NZ"),
        EVERYWHERE,
    ),
    "cache read": ("npu_gather_pa_kv_cache", around.gather_pa(), EVERYWHERE),
    "latent cache write": ("npu_kv_rmsnorm_rope_cache", around.kv_rmsnorm(), EVERYWHERE),
    "scatter": ("npu_scatter_nd_update_", around.scatter_nd(), EVERYWHERE),
    "norm": ("npu_rms_norm", {"input": zeros(3, 5, 64), "gamma": zeros(64)}, EVERYWHERE),
    "add and norm": (
        "npu_add_rms_norm",
        {"x1": zeros(3, 64), "x2": zeros(3, 64), "gamma": zeros(64)},
        EVERYWHERE,
    ),
    "interleaved rope": (
        "npu_interleave_rope",
        {"x": zeros(2, 4, 3, 64), "cos": zeros(2, 1, 3, 64), "sin": zeros(2, 1, 3, 64)},
        EVERYWHERE,
    ),
    "rope": (
        "npu_rotary_mul",
        {"input": zeros(2, 4, 3, 64), "r1": zeros(1, 1, 3, 64), "r2": zeros(1, 1, 3, 64)},
        EVERYWHERE,
    ),
    "transposed product": (
        "npu_transpose_batchmatmul",
        {"input": zeros(8, 7, 512), "weight": zeros(8, 512, 128)},
        EVERYWHERE,
    ),
    "prolog": ("npu_mla_prolog_v3", around.prolog(), EVERYWHERE),
    "training attention": ("npu_fusion_attention", around.fusion(), EVERYWHERE),
}


@pytest.mark.parametrize("name", LEGAL)
def test_accepts(name: str) -> None:
    op, args, targets = LEGAL[name]
    found = {target: [str(v) for v in check(op, args, target)] for target in targets}
    assert found == {target: [] for target in targets}


def test_targets_go_by_name_or_member() -> None:
    args = calls.dense(dtype=torch.float32)
    assert check(FIA, args, Target.ASCEND910B) == check(FIA, args, "ascend910b") != []
    with pytest.raises(ValueError, match="ascend9000"):
        check(FIA, args, "ascend9000")
