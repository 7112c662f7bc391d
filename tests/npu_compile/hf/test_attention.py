"""The forms of attention that a model's layers ask for, against loops in float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import npu_compile.hf.attention
import npu_compile.hf.packed
from npu_compile.hf.attention import FiaAttention
from npu_compile.hf.kv_views import KEYWORD, LatentKV, PackedKV, PagedKV
from npu_compile.kernels.contract import ContractError, check
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.kernels.targets import Target
from tests.npu_compile.hf.drive import Recorder
from tests.npu_compile.hf.oracle import attend_request

ensure_graph_ops()

MODULE = SimpleNamespace(is_causal=True)
HEADS, KV_HEADS, DIM = 6, 2, 16


def tensors(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_model(rows: Tensor) -> Tensor:
    """(T, N, D) as attention modules pass it: (1, N, T, D)."""
    return rows.transpose(0, 1).unsqueeze(0)


def run(
    query: Tensor, key: Tensor | None, value: Tensor | None, module: Any = MODULE, **kwargs: Any
) -> Tensor:
    """(T, N, Dv) of packed tokens."""
    new = query[:, :KV_HEADS] if key is None else key
    out, weights = FiaAttention()(
        module, as_model(query), as_model(new), as_model(new if value is None else value), None, **kwargs
    )
    assert weights is None
    return out.squeeze(0)


def close(got: Tensor, wanted: list[Tensor], tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), torch.cat(wanted), atol=tolerance, rtol=tolerance)


@pytest.fixture(params=["packed", "padded"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms: the packed layout, and the batch that devices need for head sizes it doesn't take."""
    if request.param == "padded":
        monkeypatch.setattr(npu_compile.hf.packed, "packs", lambda *_, **__: False)
    return str(request.param)


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_packed_keys(layout: str, window: int | None, with_sinks: bool) -> None:
    """Requests of 7, 1 and 17 tokens, of which the last 4, 1 and 17 are queries."""
    q_lens, kv_lens = [4, 1, 17], [7, 1, 17]
    query, key = tensors(0, sum(q_lens), HEADS, DIM), tensors(1, sum(kv_lens), KV_HEADS, DIM)
    value, sinks = tensors(2, sum(kv_lens), KV_HEADS, 12), tensors(3, HEADS) if with_sinks else None
    view = PackedKV(torch.tensor([4, 5, 22]), torch.tensor([7, 8, 25]), window)
    got = run(query, key, value, scaling=0.3, s_aux=sinks, **{KEYWORD: view})
    parts = zip(query.split(q_lens), key.split(kv_lens), value.split(kv_lens), strict=True)
    close(got, [attend_request(q, k, v, 0.3, sinks, window) for q, k, v in parts])


def paged(lengths: list[int], block_size: int = 16) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """A block table in no order, and each request's keys and values; caches are :func:`caches`."""
    blocks = [-(-length // block_size) for length in lengths]
    ids = torch.randperm(sum(blocks) + 2, generator=torch.Generator().manual_seed(4)).tolist()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count] = torch.tensor([ids.pop() for _ in range(count)])
    keys = [tensors(10 + i, length, KV_HEADS, DIM) for i, length in enumerate(lengths)]
    values = [tensors(20 + i, length, KV_HEADS, DIM) for i, length in enumerate(lengths)]
    return table, keys, values


def cache(table: Tensor, rows: list[Tensor], block_size: int = 16) -> Tensor:
    """(blocks, block_size, N_kv, D), NaN where no token is."""
    shape = (int(table.max()) + 3, block_size, *rows[0].shape[1:])
    filled = torch.full(shape, float("nan"))
    for blocks, tokens in zip(table, rows, strict=True):
        for position, token in enumerate(tokens):
            filled[int(blocks[position // block_size]), position % block_size] = token
    return filled


@pytest.mark.parametrize("with_sinks", [False, True])
def test_paged_decode(layout: str, with_sinks: bool) -> None:
    lengths = [1, 17, 54, 33]
    table, keys, values = paged(lengths)
    query, sinks = tensors(0, 4, HEADS, DIM), tensors(3, HEADS) if with_sinks else None
    ends = torch.arange(1, 5)
    view = PagedKV(cache(table, keys), cache(table, values), table, ends, torch.tensor(lengths), True)
    got = run(query, None, None, scaling=0.3, s_aux=sinks, **{KEYWORD: view})
    close(got, [attend_request(query[i : i + 1], keys[i], values[i], 0.3, sinks) for i in range(4)])


@pytest.mark.parametrize("with_sinks", [False, True])
def test_paged_chunks(layout: str, with_sinks: bool) -> None:
    """One, one and nine new tokens on caches of 7, 3 and 97."""
    q_lens, lengths = [1, 1, 9], [7, 3, 97]
    table, keys, values = paged(lengths)
    query, sinks = tensors(0, 11, HEADS, DIM), tensors(3, HEADS) if with_sinks else None
    ends = torch.tensor([1, 2, 11])
    view = PagedKV(cache(table, keys), cache(table, values), table, ends, torch.tensor(lengths), False)
    got = run(query, None, None, scaling=0.3, s_aux=sinks, **{KEYWORD: view})
    parts = zip(query.split(q_lens), keys, values, strict=True)
    close(got, [attend_request(q, k, v, 0.3, sinks) for q, k, v in parts])


def test_decodes_apart_from_prefills(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls where the device needs them, in any order of requests, with what one call gives."""
    lengths = [7, 97, 3]
    table, keys, values = paged(lengths)
    query, ends = tensors(0, 11, HEADS, DIM), torch.tensor([1, 10, 11])
    view = PagedKV(cache(table, keys), cache(table, values), table, ends, torch.tensor(lengths), False)
    wanted = run(query, None, None, **{KEYWORD: view})
    monkeypatch.setattr(npu_compile.hf.attention, "needs_split", lambda device: True)
    with Recorder() as recorder:
        got = run(query, None, None, **{KEYWORD: view})
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)
    calls = [named for _, named in recorder.named("ascend_fia.npu_fused")]
    assert [call["actual_seq_lengths_kv"].tolist() for call in calls] == [[7, 3], [97]]
    assert [call.get("sparse_mode", 0) for call in calls] == [0, 3]


def latent_module(heads: int, nope: int, rope: int, value: int, width: int) -> Any:
    module = torch.nn.Module()
    module.kv_b_proj = torch.nn.Linear(width, heads * (nope + value), bias=False)
    module.kv_b_proj.weight.data = tensors(5, heads * (nope + value), width)
    module.qk_nope_head_dim, module.qk_rope_head_dim = nope, rope
    module.v_head_dim, module.kv_lora_rank = value, width
    return module


@pytest.mark.parametrize(("q_lens", "decode"), [([1, 1, 1], True), ([1, 3, 16], False)])
def test_latents(q_lens: list[int], decode: bool) -> None:
    """Against keys and values expanded for each token; of heads the operator takes powers of two."""
    heads, nope, rope, value, width = 3, 8, 4, 10, 16
    module = latent_module(heads, nope, rope, value, width)
    lengths = [1, 19, 40]
    table, _, _ = paged(lengths)
    latents = [tensors(30 + i, length, 1, width) for i, length in enumerate(lengths)]
    ropes = [tensors(40 + i, length, 1, rope) for i, length in enumerate(lengths)]
    query = tensors(0, sum(q_lens), heads, nope + rope)
    ends = torch.tensor(q_lens).cumsum(0)
    view = LatentKV(cache(table, latents), cache(table, ropes), table, ends, torch.tensor(lengths), decode)
    with torch.no_grad():
        got = run(query, None, None, module, scaling=0.2, **{KEYWORD: view})
        wanted = []
        for q, latent, rotated in zip(query.split(q_lens), latents, ropes, strict=True):
            both = module.kv_b_proj(latent.squeeze(1)).view(-1, heads, nope + value)
            key = torch.cat([both[..., :nope], rotated.expand(-1, heads, -1)], -1)
            wanted.append(attend_request(q, key, both[..., nope:], 0.2))
    close(got, wanted, 1e-4)


def test_latents_need_mla_weights() -> None:
    table, _, _ = paged([5])
    latents = cache(table, [tensors(0, 5, 1, 16)])
    view = LatentKV(latents, latents, table, torch.tensor([1]), torch.tensor([5]), True)
    with pytest.raises(TypeError, match=r"Module: a latent cache needs kv_b_proj"):
        run(tensors(0, 1, 2, 20), None, None, torch.nn.Module(), **{KEYWORD: view})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": torch.tensor([[99, 0]], dtype=torch.int32)}, r"block_table.*99"),
        ({"block_table": torch.tensor([[-1, 0]], dtype=torch.int32)}, r"block_table.*-1"),
        ({"block_table": torch.tensor([[0]], dtype=torch.int32)}, r"block_table.*for 17 keys"),
        ({"block_table": torch.tensor([[0, 1]])}, r"block_table.*int64"),
    ],
)
def test_bad_tables_are_named(change: dict[str, Any], message: str) -> None:
    good = {
        "key_cache": torch.zeros(4, 16, KV_HEADS, DIM),
        "value_cache": torch.zeros(4, 16, KV_HEADS, DIM),
        "block_table": torch.tensor([[0, 1]], dtype=torch.int32),
        "query_lengths": torch.tensor([1]),
        "kv_lengths": torch.tensor([17]),
        "decode": True,
    }
    run(tensors(0, 1, HEADS, DIM), None, None, **{KEYWORD: PagedKV(**good)})
    with pytest.raises(ContractError, match=message):
        run(tensors(0, 1, HEADS, DIM), None, None, **{KEYWORD: PagedKV(**{**good, **change})})


def recorded(query: Tensor, view: Any, monkeypatch: pytest.MonkeyPatch, packed: bool, **kwargs: Any) -> Any:
    monkeypatch.setattr(npu_compile.hf.packed, "packs", lambda *_, **__: packed)
    with Recorder() as recorder:
        run(query, None, None, **kwargs, **{KEYWORD: view})
    ((args, arguments),) = recorder.named("ascend_fia.npu_fused")
    (name,) = {n.split(".")[1] for n, _, _ in recorder.calls if n.startswith("ascend_fia.npu_fused")}
    return name, {"query": args[0], "key": args[1], "value": args[2], **arguments}


@pytest.mark.parametrize("target", [Target.ASCEND910B, Target.ASCEND910_93])
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_calls_are_legal_on_devices(
    target: Target, dim: int, decode: bool, with_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q_lens = [1, 1] if decode else [1, 5]
    blocks = torch.zeros(3, 128, KV_HEADS, dim, dtype=torch.bfloat16)
    table = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
    view = PagedKV(blocks, blocks, table, torch.tensor(q_lens).cumsum(0), torch.tensor([130, 7]), decode)
    query = torch.zeros(sum(q_lens), HEADS, dim, dtype=torch.bfloat16)
    sinks = torch.zeros(HEADS, dtype=torch.bfloat16) if with_sinks else None
    name, arguments = recorded(query, view, monkeypatch, dim == 128, s_aux=sinks)
    assert check(name, arguments, target) == []


def test_packing_follows_the_devices_rules() -> None:
    class OnNpu:
        device = SimpleNamespace(type="npu")

        def __init__(self, dim: int) -> None:
            self.shape = (1, 8, dim)

    packs = npu_compile.hf.fia.packs
    assert packs(OnNpu(128), 128, 8, 2)
    assert packs(OnNpu(64), 64, 8, 8)
    assert not packs(OnNpu(64), 64, 8, 2)
    assert not packs(OnNpu(80), 80, 8, 8)
    assert packs(OnNpu(192), 192, 8, 8)
    assert not packs(OnNpu(192), 192, 8, 2)
    assert not packs(OnNpu(192), 192, 8, 8, paged=True)
    assert packs(torch.empty(1, 8, 80), 80, 8, 2)
