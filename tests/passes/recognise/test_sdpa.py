"""Every call form of scaled_dot_product_attention, and the forms that must be left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from npu_compile.passes.recognise import recognise
from npu_compile.passes.site import AttentionSite
from tests.passes.graphs import aten_graph, random

B, N, KV, Q, K, D = 2, 6, 3, 5, 17, 16


def only_site(function: Callable[..., Any], *inputs: Any) -> AttentionSite:
    found = recognise(aten_graph(function, *inputs).graph)
    assert not found.refusals
    (site,) = found.sites
    return site


def reason(function: Callable[..., Any], *inputs: Any) -> str:
    found = recognise(aten_graph(function, *inputs).graph)
    assert not found.sites
    (refusal,) = found.refusals
    return refusal.reason


def qkv(heads: int = N, kv_heads: int = N, keys: int = K) -> tuple[torch.Tensor, ...]:
    return random(B, heads, Q, D), random(B, kv_heads, keys, D, seed=1), random(B, kv_heads, keys, D, seed=2)


def sizes(site: AttentionSite) -> tuple[Any, ...]:
    shape = site.scores
    return (shape.batch, shape.heads, shape.query, shape.key, site.num_key_value_heads, site.head_dim)


def test_plain_call() -> None:
    site = only_site(F.scaled_dot_product_attention, *qkv())
    assert sizes(site) == (B, N, Q, K, N, D)
    assert site.scale == 0.25
    assert site.masks == ()


def test_scale_is_the_programs_own() -> None:
    site = only_site(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5), *qkv())
    assert site.scale == 0.5


def test_causal_flag_is_a_mask_term() -> None:
    site = only_site(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *qkv(keys=Q))
    assert [term.kind for term in site.masks] == ["causal"]


@pytest.mark.parametrize(("dtype", "kind"), [(torch.bool, "keep"), (torch.float32, "add")])
def test_mask_kind_follows_its_dtype(dtype: torch.dtype, kind: str) -> None:
    mask = torch.ones(Q, K, dtype=dtype)
    site = only_site(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *qkv(), mask)
    assert [term.kind for term in site.masks] == [kind]


def test_enable_gqa_keeps_the_key_heads() -> None:
    site = only_site(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *qkv(kv_heads=KV)
    )
    assert site.num_key_value_heads == KV


def repeat_kv(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, dim = x.shape
    return x[:, :, None].expand(batch, heads, times, length, dim).reshape(batch, heads * times, length, dim)


REPEATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expand and reshape": lambda x: repeat_kv(x, N // KV),
    "repeat_interleave": lambda x: x.repeat_interleave(N // KV, dim=1),
    "repeat_interleave, negative axis": lambda x: x.repeat_interleave(N // KV, dim=-3),
    "repeat of a new axis": lambda x: x.unsqueeze(2).repeat(1, 1, N // KV, 1, 1).flatten(1, 2),
    "with sequence before heads": lambda x: (
        x.transpose(1, 2).unsqueeze(3).expand(B, K, KV, N // KV, D).reshape(B, K, N, D).transpose(1, 2)
    ),
}


@pytest.mark.parametrize("spelling", REPEATS)
def test_repeated_heads_are_folded(spelling: str) -> None:
    repeat = REPEATS[spelling]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, repeat(k), repeat(v))

    assert sizes(only_site(attend, *qkv(kv_heads=KV))) == (B, N, Q, K, KV, D)


def test_tiled_heads_are_not_a_group() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))

    assert only_site(attend, *qkv(kv_heads=KV)).num_key_value_heads == N


def test_heads_repeated_on_one_side_only_are_kept() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, repeat_kv(k, 2), v)

    q, k, _ = qkv(kv_heads=KV)
    assert only_site(attend, q, k, random(B, N, K, D)).num_key_value_heads == N


def test_one_head_expanded_is_mqa() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k.expand(B, N, K, D), v.expand(B, N, K, D))

    assert only_site(attend, *qkv(kv_heads=1)).num_key_value_heads == 1


def test_three_dimensions_are_heads_of_batch_one() -> None:
    q, k, v = (x[0] for x in qkv())
    assert sizes(only_site(F.scaled_dot_product_attention, q, k, v)) == (1, N, Q, K, N, D)


def test_batch_of_keys_broadcasts() -> None:
    q, k, v = qkv()
    site = only_site(F.scaled_dot_product_attention, q, k[:1], v[:1])
    assert site.scores.batch == B


def test_dropout_is_left_alone() -> None:
    assert "dropout" in reason(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), *qkv())


def test_five_dimensions_are_broadcast_by_the_program_alone() -> None:
    q, k, v = (x[None] for x in qkv())
    assert only_site(F.scaled_dot_product_attention, q, k, v).scores.batch == B
    wide = q.expand(3, B, N, Q, D)
    assert "leading" in reason(F.scaled_dot_product_attention, wide, k, v)


def test_integer_values_are_not_attention_for_the_operator() -> None:
    q, k, v = (x.to(torch.float64) for x in qkv())
    assert only_site(F.scaled_dot_product_attention, q, k, v).softmax_dtype == torch.float64


def test_overwritten_key_is_left_alone() -> None:
    """The program reads K before the write; the fused call would read it after."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        old = k.clone()
        k.zero_()
        return F.scaled_dot_product_attention(q, old, v)

    assert "overwritten" in reason(attend, *qkv())


def test_cache_written_in_place_is_read_as_it_is_after_the_write() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        k.index_copy_(2, torch.tensor([3], device=k.device), new)
        return F.scaled_dot_product_attention(q, k, v)

    site = only_site(attend, *qkv(), random(B, N, 1, D))
    assert site.cache == "static"
    assert "index_copy_" in str(site.key.node.target)


def test_a_query_of_fewer_dimensions_does_not_lose_those_of_the_result() -> None:
    q, k, v = qkv()
    assert "broadcast" in reason(F.scaled_dot_product_attention, q[0], k[:1], v[:1])


def test_heads_of_no_size_are_left_alone() -> None:
    q, k, v = qkv()
    assert "shapes do not fit" in reason(F.scaled_dot_product_attention, q[..., :0], k[..., :0], v)


def test_fused_encoder_layer_says_how_to_open_it() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten._transformer_encoder_layer_fwd.default, (x,)))
    (refusal,) = recognise(graph).refusals
    assert "set_fastpath_enabled(False)" in refusal.reason
