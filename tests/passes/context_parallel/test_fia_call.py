"""Layouts to rows and back, and where each layout keeps its log-sum-exp."""

from __future__ import annotations

import pytest
import torch

from npu_compile.passes.context_parallel.fia_call import FiaCall, from_rows, lse_rows, to_rows

B, N, S, D = 2, 3, 5, 4


@pytest.mark.parametrize("letters", ["BNSD", "BSND", "NBSD", "TND", "NTD"])
def test_rows_are_in_order_of_batch_then_sequence(letters):
    size = {"B": B, "N": N, "S": S, "T": B * S, "D": D}
    tensor = torch.arange(B * N * S * D).view([size[letter] for letter in letters])
    rows = to_rows(tensor, letters, N)
    assert rows.shape == (B * S, N, D)
    for b in range(B):
        for s in range(S):
            for n in range(N):
                at = {"B": b, "S": s, "N": n, "T": b * S + s}
                assert torch.equal(rows[b * S + s, n], tensor[tuple(at[x] for x in letters[:-1])])
    assert torch.equal(from_rows(rows, letters, B), tensor)


def test_bsh_has_its_heads_in_the_last_dim():
    tensor = torch.arange(B * S * N * D).view(B, S, N * D)
    rows = to_rows(tensor, "BSH", N)
    assert torch.equal(rows[6, 2], tensor[1, 1, 2 * D : 3 * D])
    assert torch.equal(from_rows(rows, "BSH", B), tensor)


def test_the_lse_has_its_own_layout():
    dense = torch.arange(B * N * S).view(B, N, S, 1)
    for layout in ("BNSD", "BSND", "BSH", "BNSD_BSND", "BNSD_NBSD", "BSND_NBSD"):
        assert lse_rows(dense, layout)[6, 2] == dense[1, 2, 1, 0]
    packed = torch.arange(S * N).view(S, N, 1)
    for layout in ("TND", "NTD", "TND_NTD", "NTD_TND"):
        assert lse_rows(packed, layout)[4, 2] == packed[4, 2, 0]


def test_both_versions_are_read_by_meaning():
    for name, heads in (("", "num_heads"), ("_v2", "num_query_heads")):
        operator = getattr(torch.ops.ascend_fia, "npu_fused_infer_attention_score" + name).default
        call = FiaCall(operator, None, None, None, {heads: 6})
        assert (call.num_heads, call.num_key_value_heads, call.input_layout) == (6, 6, "BSH")
        changed = call.with_arguments(num_key_value_heads=2, input_layout="TND", **{heads: None})
        assert (changed.num_heads, changed.num_key_value_heads, changed.input_layout) == (1, 2, "TND")
