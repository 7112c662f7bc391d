"""FIA beyond what random small calls reach: long sequences, shared memory, given outputs, the work done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from npu_compile.kernels.cpu import fia_v1
from npu_compile.kernels.register import ensure_npu_ops
from tests.kernels.oracle.compare import assert_close, assert_lse
from tests.kernels.oracle.definition import attention, visible
from tests.kernels.oracle.fia_call import TRIANGLE

ensure_npu_ops()
npu = torch.ops.npu
fia = npu.npu_fused_infer_attention_score
fia_v2 = npu.npu_fused_infer_attention_score_v2
UNLIMITED = 2**31 - 1


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def bnsd(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    given = {"num_heads": q.shape[1], "num_key_value_heads": k.shape[1], "input_layout": "BNSD", "scale": 0.3}
    result: tuple[Tensor, Tensor] = fia(q, k, v, **given, **options)
    return result


@pytest.mark.parametrize(
    ("q_len", "kv_len", "mode", "pre", "following"),
    [
        (300, 300, 2, UNLIMITED, UNLIMITED),
        (513, 700, 2, UNLIMITED, UNLIMITED),
        (700, 300, 2, UNLIMITED, UNLIMITED),
        (300, 700, 3, UNLIMITED, UNLIMITED),
        (257, 700, 4, 100, 0),
        (513, 700, 4, 30, 20),
        (513, 513, 4, 256, UNLIMITED),
        (513, 300, 4, UNLIMITED, 5),
        (513, 700, 4, -10, 40),
        (257, 513, 4, 400, -300),
    ],
)
def test_long_sequences_in_every_band(q_len: int, kv_len: int, mode: int, pre: int, following: int) -> None:
    q, k, v = normal(1, 2, q_len, 16), normal(1, 1, kv_len, 16), normal(1, 1, kv_len, 16, seed=1)
    window = {"pre_tokens": pre, "next_tokens": following}
    out, lse = bnsd(q, k, v, sparse_mode=mode, atten_mask=TRIANGLE, softmax_lse_flag=True, **window)
    want, want_lse = attention(q[0], k[0], v[0], 0.3, visible(mode, q_len, kv_len, pre, following))
    assert_close(out[0], want)
    assert_lse(lse[0, :, :, 0], want_lse, 2e-5)


def test_requests_may_share_blocks() -> None:
    """Three requests with a common first block, one of them with nothing else."""
    cache_k, cache_v = torch.full((5, 2, 16, 8), float("nan")), torch.full((5, 2, 16, 8), float("nan"))
    for block, tokens in ((3, 16), (0, 9), (4, 2)):
        cache_k[block, :, :tokens] = normal(2, tokens, 8, seed=block)
        cache_v[block, :, :tokens] = normal(2, tokens, 8, seed=block + 9)
    tables, lengths = [[3, 0], [3, 4], [3, 99]], [25, 18, 16]
    q = normal(3, 4, 1, 8)
    out, _ = bnsd(
        q, cache_k, cache_v, block_table=torch.tensor(tables, dtype=torch.int32), block_size=16,
        actual_seq_lengths_kv=lengths,
    )  # fmt: skip
    for b, (row, length) in enumerate(zip(tables, lengths, strict=True)):
        blocks = row[: -(-length // 16)]
        k, v = (torch.cat([cache[i] for i in blocks], 1)[:, :length] for cache in (cache_k, cache_v))
        want, _ = attention(q[b], k, v, 0.3, torch.ones(1, length, dtype=torch.bool))
        assert_close(out[b], want)


def strided(tensor: Tensor, form: str) -> Tensor:
    """The same numbers in other memory."""
    if form == "transposed":
        return tensor.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    if form == "sliced":
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] * 2 + 1), float("nan"))
        wide[..., 1::2] = tensor
        return wide[..., 1::2]
    return tensor[:1].expand_as(tensor)


@pytest.mark.parametrize("form", ["transposed", "sliced", "expanded"])
@pytest.mark.parametrize("q_len", [1, 7])
def test_inputs_need_not_be_contiguous(form: str, q_len: int) -> None:
    q, k, v = normal(2, 4, q_len, 24), normal(2, 2, 54, 24), normal(2, 2, 54, 24, seed=1)
    q, k, v = (strided(t, form) for t in (q, k, v))
    out, _ = bnsd(q, k, v, actual_seq_lengths_kv=[17, 54])
    for b, length in enumerate((17, 54)):
        want, _ = attention(q[b], k[b, :, :length], v[b, :, :length], 0.3, torch.ones(q_len, length).bool())
        assert_close(out[b], want)


@pytest.mark.parametrize("q_len", [1, 3])
def test_nothing_to_attend_to_gives_zeros(q_len: int) -> None:
    q, k = normal(2, 4, q_len, 8), torch.empty(2, 2, 0, 8)
    out, lse = bnsd(q, k, k, softmax_lse_flag=True)
    assert out.shape == q.shape and not out.any()
    assert lse.shape == (2, 4, q_len, 1) and torch.isneginf(lse).all()
    garbage = torch.full((2, 2, 9, 8), float("nan"))
    out, lse = bnsd(q, garbage, garbage, actual_seq_lengths_kv=[0, 0], softmax_lse_flag=True)
    assert not out.any() and torch.isneginf(lse).all()


def test_no_requests_at_all() -> None:
    q, k = torch.empty(0, 4, 3, 8), torch.empty(0, 2, 5, 8)
    out, lse = bnsd(q, k, k, softmax_lse_flag=True)
    assert out.shape == (0, 4, 3, 8) and lse.shape == (0, 4, 3, 1)


class Recorded:
    """Stands in for the core and keeps the shapes and memory of the keys it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[Tensor] = []
        original = fia_v1.attend

        def attend(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            self.keys.append(k)
            return original(q, k, *rest)

        monkeypatch.setattr(fia_v1, "attend", attend)


def test_equal_lengths_are_one_call_on_the_cache_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = normal(3, 8, 1, 16), normal(3, 2, 4096, 16), normal(3, 2, 4096, 16, seed=1)
    recorded = Recorded(monkeypatch)
    bnsd(q, k, v, actual_seq_lengths_kv=[54] * 3)
    (keys,) = recorded.keys
    assert tuple(keys.shape) == (3, 2, 54, 16), "heads aren't repeated, tokens beyond the length not read"
    assert keys.untyped_storage().data_ptr() == k.untyped_storage().data_ptr(), "the cache isn't copied"


def test_uneven_lengths_are_read_to_their_ends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = normal(3, 8, 1, 16), normal(3, 2, 4096, 16), normal(3, 2, 4096, 16, seed=1)
    recorded = Recorded(monkeypatch)
    bnsd(q, k, v, actual_seq_lengths_kv=[54, 0, 4000])
    assert [keys.shape[2] for keys in recorded.keys] == [54, 0, 4000]
    assert all(keys.untyped_storage().data_ptr() == k.untyped_storage().data_ptr() for keys in recorded.keys)


def test_out_is_written_in_place() -> None:
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 17, 8), normal(2, 2, 17, 8, seed=1)
    options = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "softmax_lse_flag": True}
    want = fia(q, k, v, **options)
    workspace = npu._npu_fused_infer_attention_score_get_max_workspace(q, k, v, **options)
    out = npu._npu_fused_infer_attention_score_infer_output(q, v, **options)
    assert [(t.shape, t.dtype) for t in out] == [(t.shape, t.dtype) for t in want]
    given = [torch.full_like(t, 7.0) for t in want]
    returned = fia.out(q, k, v, **options, workspace=workspace, out=given)
    for mine, back, expected in zip(given, returned, want, strict=True):
        assert torch.equal(mine, expected) and back.data_ptr() == mine.data_ptr()


def test_out_of_v2_is_written_in_place() -> None:
    q, k = normal(2, 4, 3, 8), normal(2, 2, 17, 8)
    options = {"num_query_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD"}
    want, _ = fia_v2(q, k, k, **options)
    workspace = npu._npu_fused_infer_attention_score_v2_get_max_workspace(q, k, k, **options)
    out = list(npu._npu_fused_infer_attention_score_v2_infer_output(q, k, **options))
    fia_v2.out(q, k, k, **options, workspace=workspace, out=out)
    assert torch.equal(out[0], want)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 4, 3, 9), torch.zeros(2, 4, 3, 8, dtype=torch.float16)])
def test_an_output_that_does_not_fit_is_left_alone(wrong: Tensor) -> None:
    q, k = normal(2, 4, 3, 8), normal(2, 2, 17, 8)
    with pytest.raises(ValueError, match="out"):
        fia.out(q, k, k, num_heads=4, num_key_value_heads=2, input_layout="BNSD", out=[wrong, torch.zeros(0)])
    assert not wrong.any()


@pytest.mark.parametrize("lengths", [[17, 54], (17, 54), [17, 54, 3], torch.tensor([17, 54]), "int32"])
def test_lengths_are_lists_or_tensors(lengths: Any) -> None:
    q, k = normal(2, 4, 1, 8), normal(2, 2, 54, 8)
    if lengths == "int32":
        lengths = torch.tensor([17, 54], dtype=torch.int32)
    out, _ = bnsd(q, k, k, actual_seq_lengths_kv=lengths)
    for b, length in enumerate((17, 54)):
        keys = k[b, :, :length]
        assert_close(out[b], attention(q[b], keys, keys, 0.3, torch.ones(1, length).bool())[0])


@pytest.mark.parametrize(
    ("layout", "lengths"),
    [("BNSD", [55, 1]), ("BNSD", [-1, 3]), ("BNSD", [1, 2, 3][:0]), ("TND", [3, 2]), ("TND", [1, 53])],
)
def test_wrong_key_lengths_are_refused(layout: str, lengths: list[int]) -> None:
    packed = layout == "TND"
    q, k = (normal(2, 4, 8), normal(54, 2, 8)) if packed else (normal(2, 4, 1, 8), normal(2, 2, 54, 8))
    options = {"actual_seq_lengths": [1, 2]} if packed else {}
    with pytest.raises((ValueError, TypeError), match="actual_seq_lengths_kv"):
        fia(
            q, k, k, num_heads=4, num_key_value_heads=2, input_layout=layout, actual_seq_lengths_kv=lengths,
            **options,
        )  # fmt: skip


def test_a_shared_prefix_has_no_rope_part() -> None:
    q, k, rope = normal(1, 2, 3, 16), normal(1, 2, 17, 16), normal(1, 2, 17, 8)
    prefix = normal(1, 2, 5, 16)
    with pytest.raises(ValueError, match="key_shared_prefix"):
        bnsd(
            q, k, k, query_rope=normal(1, 2, 3, 8), key_rope=rope, key_shared_prefix=prefix,
            value_shared_prefix=prefix,
        )  # fmt: skip


def test_a_table_that_names_no_block_is_refused() -> None:
    q, cache = normal(1, 4, 1, 8), normal(2, 2, 16, 8)
    table = torch.tensor([[1, 7]], dtype=torch.int32)
    options = {"block_table": table, "block_size": 16}
    assert bnsd(q, cache, cache, actual_seq_lengths_kv=[16], **options)[0].isfinite().all()
    with pytest.raises(ValueError, match="block_table"):
        bnsd(q, cache, cache, actual_seq_lengths_kv=[17], **options)
