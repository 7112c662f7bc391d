"""MLA steps captured as a graph: the lengths of each operator go under its own key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import StaticCache

from npu_compile import last_report
from tests.models.mla_families import MLA_FAMILIES
from tests.models.mla_run import prompt

CAPACITY = 48
HIDDEN, HEADS, LATENT, NOPE, ROPE = 64, 4, 32, 16, 8


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Hybrid(nn.Module):
    """A layer of grouped-query attention and one of MLA over static caches of one length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(HIDDEN, HIDDEN + 2 * 32, bias=False)
        self.query = nn.Linear(HIDDEN, HEADS * (NOPE + ROPE), bias=False)
        self.down = nn.Linear(HIDDEN, LATENT + ROPE, bias=False)
        self.up = nn.Linear(LATENT, HEADS * 2 * NOPE, bias=False)
        self.out = nn.Linear(HEADS * NOPE, HIDDEN, bias=False)

    def forward(
        self, x: Tensor, place: Tensor, keys: Tensor, values: Tensor, latents: Tensor, ropes: Tensor
    ) -> Tensor:
        keep = (torch.arange(CAPACITY) <= place)[None, None, None]
        batch = x.shape[0]
        q, k, v = self.qkv(x).split([HIDDEN, 32, 32], -1)
        keys.index_copy_(2, place, k.view(batch, 1, 2, 16).transpose(1, 2))
        values.index_copy_(2, place, v.view(batch, 1, 2, 16).transpose(1, 2))
        dense = F.scaled_dot_product_attention(
            q.view(batch, 1, HEADS, 16).transpose(1, 2), keys, values, attn_mask=keep, enable_gqa=True
        )
        x = x + dense.transpose(1, 2).reshape(batch, 1, HIDDEN)
        latent, rope = self.down(x).split([LATENT, ROPE], -1)
        latents.index_copy_(2, place, latent.unsqueeze(1))
        ropes.index_copy_(2, place, rope.unsqueeze(1))
        per_head = self.up(latents).view(batch, CAPACITY, HEADS, 2 * NOPE).transpose(1, 2)
        key_nope, value = per_head.split([NOPE, NOPE], -1)
        key = torch.cat([key_nope, ropes.expand(-1, HEADS, -1, -1)], -1)
        query = self.query(x).view(batch, 1, HEADS, NOPE + ROPE).transpose(1, 2)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        return x + self.out(found.transpose(1, 2).reshape(batch, 1, HEADS * NOPE))


def caches() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 16), (2, 16), (1, LATENT), (1, ROPE))
    return tuple(torch.randn(3, heads, CAPACITY, width, generator=generator) for heads, width in sizes)


def test_a_hybrid_updates_each_operator_by_its_own_key() -> None:
    model = Hybrid()
    step = torch.compile(model, backend="ascend_fia", options={"capture": True})
    ours, theirs = caches(), caches()
    for place in (0, 1, 16, 46, 47):
        x = torch.randn(3, 1, HIDDEN, generator=torch.Generator().manual_seed(place))
        at = torch.tensor([place])
        torch.testing.assert_close(step(x, at, *ours), model(x, at, *theirs), rtol=0, atol=1e-5)
    (graph,) = last_report().graphs
    assert [site.form for site in graph.sites] == ["sdpa", "mla"] and graph.capture is not None
    updated = {(row[1], row[3]) for row in graph.capture.update_plan}
    assert updated == {
        ("npu_fused_infer_attention_score", "actual_seq_lengths_kv"),
        ("npu_fused_infer_attention_score_v2", "actual_seq_kvlen"),
    }


def test_a_captured_model_decodes_the_same_tokens() -> None:
    model = MLA_FAMILIES["deepseek_v3"].build(layers=2)
    step = torch.compile(model.forward, backend="ascend_fia", options={"capture": True})
    ours, theirs = (StaticCache(config=model.config, max_cache_len=CAPACITY) for _ in range(2))
    token = prompt()
    model(input_ids=token, cache=ours, use_cache=True)
    token = model(input_ids=token, cache=theirs, use_cache=True).logits[:, -1:].argmax(-1)
    for _ in range(8):
        wanted = model(input_ids=token, cache=theirs, use_cache=True).logits
        got = step(input_ids=token, cache=ours, use_cache=True).logits
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
        token = wanted.argmax(-1)
    rows = [row for graph in last_report().graphs if graph.capture for row in graph.capture.update_plan]
    assert rows and {row[3] for row in rows} == {"actual_seq_kvlen"}
