"""Batches padded to captured sizes: decode steps over a paged cache, its lengths and slots as inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from npu_compile.errors import AscendFiaError
from npu_compile.kernels.graph_ops import ensure_graph_ops
from npu_compile.runtime import CapturedCallable, CaptureOptions, capture

ensure_graph_ops()

N, N_KV, D, BLOCKS, BLOCK = 4, 2, 32, 11, 16
SCALE = 0.25
SIZES = CaptureOptions(capture_sizes=(1, 2, 4), on_refusal="error")


def paged_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    table: Tensor,
    lengths: Tensor,
    keys: Tensor,
    values: Tensor,
) -> tuple[Tensor]:
    """q (B, N, 1, D), k and v (B, N_KV * D), caches (BLOCKS, BLOCK, N_KV * D), one slot a row."""
    keys.view(-1, N_KV * D).index_copy_(0, slots, k)
    values.view(-1, N_KV * D).index_put_((slots,), v)
    output = torch.ops.ascend_fia.npu_fused_infer_attention_score(
        q,
        keys,
        values,
        num_heads=N,
        num_key_value_heads=N_KV,
        input_layout="BNSD",
        scale=SCALE,
        block_table=table,
        block_size=BLOCK,
        actual_seq_lengths_kv=torch.ops.ascend_fia.host_lengths(lengths),
    )[0]
    return (output * 2,)


def caches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(BLOCKS, BLOCK, N_KV * D, generator=generator) for _ in "kv"]


def requests(step: int, batch: int) -> list[Tensor]:
    """A step of ``batch`` requests with one or two blocks each; no block is shared."""
    generator = torch.Generator().manual_seed(step)
    rows = [
        torch.randn(batch, *shape, generator=generator) for shape in ((N, 1, D), (N_KV * D,), (N_KV * D,))
    ]
    table = torch.randperm(BLOCKS, generator=generator)[: 2 * batch].view(batch, 2).int()
    lengths = torch.randint(1, 2 * BLOCK + 1, (batch,), generator=generator)
    last = lengths - 1
    slots = table.gather(1, (last // BLOCK)[:, None])[:, 0].long() * BLOCK + last % BLOCK
    return [*rows, slots, table, lengths]


def expected(step: int, batch: int, keys: Tensor, values: Tensor) -> Tensor:
    """What a step gives; writes to the caches, row by row."""
    q, k, v, slots, table, lengths = requests(step, batch)
    out = torch.zeros(batch, N, 1, D, dtype=torch.float64)
    for b in range(batch):
        keys.view(-1, N_KV * D)[slots[b]] = k[b]
        values.view(-1, N_KV * D)[slots[b]] = v[b]
    for b in range(batch):
        cells = [(table[b, i // BLOCK], i % BLOCK) for i in range(int(lengths[b]))]
        for n in range(N):
            part = slice(n // (N // N_KV) * D, (n // (N // N_KV) + 1) * D)
            key_rows = torch.stack([keys[block, i, part].double() for block, i in cells])
            value_rows = torch.stack([values[block, i, part].double() for block, i in cells])
            out[b, n, 0] = torch.softmax(key_rows @ q[b, n, 0].double() * SCALE, 0) @ value_rows
    return out * 2


def traced(function: Callable[..., Any], *args: Any) -> torch.fx.GraphModule:
    with torch.no_grad():
        return make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(*args)


def paged_graph() -> torch.fx.GraphModule:
    return traced(paged_step, *requests(0, 3), *caches())


def test_batches_share_captures() -> None:
    function, mine, theirs = capture(paged_graph(), SIZES), caches(), caches()
    batches = [3, 1, 4, 2, 3, 3, 1, 2, 4, 3]
    for step, batch in enumerate(batches):
        (output,) = function(*requests(step, batch), *mine)
        want = expected(step, batch, *theirs)
        assert output.shape == (batch, N, 1, D)
        torch.testing.assert_close(output.double(), want, atol=1e-5, rtol=0)
        assert torch.equal(mine[0], theirs[0]), "padding must not write to the cache"
        assert torch.equal(mine[1], theirs[1])
    stats = function.stats
    assert stats.captures == 3
    assert stats.captures + stats.replays == len(batches)
    assert not stats.fallbacks


def test_rows_of_padding() -> None:
    """What the captured graph is given: length 0, block 0, slot -1."""
    function, state = capture(paged_graph(), SIZES), caches()
    for step in (0, 1):
        function(*requests(step, 3), *state)
    graph = function.graphs[0]
    slots, table, lengths = graph._args[3:6]  # type: ignore[attr-defined]
    assert slots[3].item() == -1
    assert table[3].tolist() == [0, 0]
    assert lengths[3].item() == 0
    assert graph.records[0].lengths["actual_seq_lengths_kv"] == [*requests(1, 3)[5].tolist(), 0]


def test_a_batch_larger_than_all_sizes() -> None:
    args = [*requests(0, 5), *caches()]
    function = capture(paged_graph(), SIZES)
    torch.testing.assert_close(function(*args)[0].double(), expected(0, 5, *caches()), atol=1e-5, rtol=0)
    assert dict(function.stats.fallbacks) == {"a batch of 5 is larger than all capture sizes (1, 2, 4)": 1}
    strict = capture(paged_graph(), CaptureOptions(capture_sizes=(1, 2, 4), on_oversize="error"))
    with pytest.raises(AscendFiaError, match=r"batch=5: .* larger than all capture sizes \(1, 2, 4\)"):
        strict(*args)


def test_inputs_that_disagree_about_the_batch() -> None:
    args = [*requests(0, 3), *caches()]
    args[5] = args[5][:2]
    with pytest.raises(AscendFiaError, match=r"batch=\[2, 3\]"):
        capture(paged_graph(), SIZES)(*args)


def attend(q: Tensor, lengths: Tensor) -> Tensor:
    """Attention of q (B, N, 1, D) to itself."""
    known = torch.ops.ascend_fia.host_lengths(lengths)
    operator = torch.ops.ascend_fia.npu_fused_infer_attention_score
    return operator(q, q, q, num_heads=N, input_layout="BNSD", actual_seq_lengths_kv=known)[0]


def refusal(function: Callable[..., Any], *args: Any) -> str | None:
    compiled = capture(traced(function, *args), SIZES)
    results = compiled(*args)
    torch.testing.assert_close(list(results), list(function(*args)), msg="unpadded, it is right")
    return compiled.padding_refusal


Q, LENGTHS = torch.rand(3, N, 1, D), torch.ones(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        (lambda x: x - x.mean(0, keepdim=True), "mean.* mixes the rows"),
        (lambda x: x.softmax(0), "softmax.* works along the batch"),
        (lambda x: x.flip(0), "flip.* works along the batch"),
        (lambda x: x[x[:, 0, 0, 0].argsort()], "mixes the rows|works along"),
        (lambda x: x.flatten(1) @ x.flatten(1).T, "mixes the rows"),
        (lambda x: x[-1:] + x, "slice.* mixes the rows"),
        (lambda x: x / x.shape[0], "div.* computes with the batch size"),
        (lambda x: x[1:] * x[:-1], "slice.* works along the batch"),
    ],
)
def test_rows_that_depend_on_each_other_are_not_padded(mix: Callable[[Tensor], Tensor], reason: str) -> None:
    import re

    found = refusal(lambda q, lengths: (mix(attend(q, lengths)),), Q, LENGTHS)
    assert found is not None
    assert re.search(reason, found), found


def test_what_rows_may_do() -> None:
    def step(q: Tensor, lengths: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out = attend(q, lengths).transpose(1, 2).reshape(q.shape[0], 1, N * D)
        out = (out @ weight).softmax(-1)
        return out + out.mean(-1, keepdim=True), lengths.cumsum(0)

    assert refusal(step, Q, LENGTHS, torch.rand(N * D, N * D)) is None


def test_a_cache_of_the_batch_is_not_padded() -> None:
    def step(q: Tensor, lengths: Tensor, cache: Tensor) -> tuple[Tensor]:
        cache.add_(1)
        return (attend(q, lengths) + cache,)

    compiled = capture(traced(step, Q, LENGTHS, torch.zeros(3, N, 1, D)), SIZES)
    assert compiled.padding_refusal is not None
    assert "is written to and has the size of the batch" in compiled.padding_refusal


def test_a_fixed_batch_is_not_padded() -> None:
    def graph() -> torch.fx.GraphModule:
        with torch.no_grad():
            return make_fx(lambda q, n: (attend(q, n),), tracing_mode="fake", pre_dispatch=True)(Q, LENGTHS)

    function: CapturedCallable = capture(graph(), SIZES)
    assert function.padding_refusal == (
        "the attention's batch is 3, not a size that can change (dynamic=True makes one)"
    )
    for _ in range(3):
        function(Q, LENGTHS)
    assert function.stats.captures == 1


def test_nobody_asked() -> None:
    function = capture(paged_graph())
    assert function.padding_refusal is None
    state = caches()
    for step in range(4):
        function(*requests(step, 3), *state)
    assert function.stats.captures == 1
