"""Keys expanded from gathered latents, against expanding them where they were computed."""

from __future__ import annotations

import pytest
import torch

from npu_compile.passes.context_parallel.keys import LatentKeys
from npu_compile.passes.mla.site import HeadRows

HEADS, LATENT, NOPE, VALUE, ROPE = 3, 8, 4, 5, 2


def latents(key_weight, value_weight, key_rows, value_rows):
    return LatentKeys(None, None, key_weight, value_weight, key_rows, value_rows, HEADS)


@pytest.mark.parametrize("layout", ["heads of both", "keys then values", "apart"])
def test_expanded_by_any_arrangement_of_the_projection(layout):
    up_k, up_v = torch.randn(HEADS, NOPE, LATENT), torch.randn(HEADS, VALUE, LATENT)
    both = NOPE + VALUE
    if layout == "heads of both":
        weight = torch.cat([up_k, up_v], 1).flatten(0, 1)
        rows = HeadRows(None, 0, both, NOPE), HeadRows(None, NOPE, both, VALUE)
        given = latents(weight, weight, *rows)
    elif layout == "keys then values":
        weight = torch.cat([up_k.flatten(0, 1), up_v.flatten(0, 1)])
        rows = HeadRows(None, 0, NOPE, NOPE), HeadRows(None, HEADS * NOPE, VALUE, VALUE)
        given = latents(weight, weight, *rows)
    else:
        rows = HeadRows(None, 0, NOPE, NOPE), HeadRows(None, 0, VALUE, VALUE)
        given = latents(up_k.flatten(0, 1), up_v.flatten(0, 1), *rows)
    latent, rope = torch.randn(7, 1, LATENT), torch.randn(7, 1, ROPE)
    keys = given.expand(latent, rope)
    assert torch.allclose(keys.key, torch.einsum("tl,npl->tnp", latent[:, 0], up_k), atol=1e-5)
    assert torch.allclose(keys.value, torch.einsum("tl,nvl->tnv", latent[:, 0], up_v), atol=1e-5)
    assert torch.equal(keys.rope, rope.repeat(1, HEADS, 1))


def test_rows_are_taken_of_all_parts():
    index = torch.tensor([4, 0, 4])
    given = latents(torch.randn(27, LATENT), None, HeadRows(None, 0, 9, 4), HeadRows(None, 4, 9, 5))
    given = LatentKeys(**{**vars(given), "value_weight": given.key_weight})
    keys = given.expand(torch.randn(5, 1, LATENT), torch.randn(5, 1, ROPE))
    picked = keys.rows(index)
    for name in ("key", "value", "rope"):
        assert torch.equal(getattr(picked, name), getattr(keys, name)[index])
