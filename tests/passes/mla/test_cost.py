"""When attending over latents pays."""

from __future__ import annotations

from dataclasses import replace

from npu_compile.passes.mla.cost import Sizes, cheaper

DEEPSEEK_V3 = Sizes(query=1, key=8192, heads=128, latent=512, nope=128, rope=64, value=128)


def test_decode_absorbs_at_every_cache_length() -> None:
    for key in (1, 17, 512, 8192, 131072):
        for heads in (1, 3, 16, 128):
            assert cheaper(replace(DEEPSEEK_V3, key=key, heads=heads)) == ("absorb" if key > 1 else "expand")


def test_a_prefill_without_a_cache_expands() -> None:
    for tokens in (17, 97, 2048, 8192):
        assert cheaper(replace(DEEPSEEK_V3, query=tokens, key=tokens)) == "expand"


def test_many_queries_over_a_long_cache_expand() -> None:
    """Multiply-adds are equal at L (P + V) / (2 L - P - V) = 170 queries over a long cache."""
    assert cheaper(replace(DEEPSEEK_V3, query=64, key=65536)) == "absorb"
    assert cheaper(replace(DEEPSEEK_V3, query=2048, key=65536)) == "expand"


def test_ranks_share_the_keys() -> None:
    """With hardly more keys on a rank than queries, expanding them is no loss."""
    few = replace(DEEPSEEK_V3, query=16, key=32)
    assert cheaper(few) == "absorb"
    assert cheaper(replace(few, ranks=16)) == "expand"


def test_costs_are_what_the_formulas_say() -> None:
    """Counted by hand for sizes that are primes."""
    sizes = Sizes(query=2, key=11, heads=3, latent=7, nope=5, rope=2, value=3)
    expanded = 3 * (11 * 7 * (5 + 3) + 2 * 11 * (5 + 2 + 3)) + 100 * (11 * 9 + 3 * 7 * 8 + 2 * 11 * 3 * 8)
    absorbed = 3 * (2 * 7 * (5 + 3) + 2 * 11 * (7 + 2 + 7)) + 100 * (11 * 9 + 3 * 7 * 8 + 2 * 2 * 3 * 7)
    assert (sizes.expanded, sizes.absorbed) == (expanded, absorbed)
