"""FIA: the paged K/V cache."""

from __future__ import annotations

from typing import Any

from .facts import proven
from .fia_call import FiaCall
from .rule import A2_A3, DEVICES, rule

MERGED_HEADS = 65535
"""KV_N * D of a BnBsH cache, at most."""


@rule(
    "fia.cache.form",
    "key",
    "a BSH or BSND query reads a BnBsH (blocks, block_size, KV_N * D) or NZ cache",
    instead="a BNSD query, or the cache viewed as BnBsH",
)
def form(call: FiaCall) -> Any:
    wrong = call.paged and len(call.key.shape) == 4 and call.layout.query in ("BSH", "BSND")
    return f"{call.key} with input_layout {call['input_layout']}" if wrong else None


@rule(
    "fia.cache.form_packed",
    "key",
    "packed attention with a key/value head per query head reads a BnBsH cache",
    targets=A2_A3,
)
def form_packed(call: FiaCall) -> Any:
    wrong = call.paged and call.layout.packed and not call.absorbed and call.heads == call.kv_heads
    return call.key if wrong and len(call.key.shape) != 3 else None


@rule("fia.cache.form_nz", "key", "an NZ cache of MLA isn't read by a BNSD query", targets=A2_A3)
def form_nz(call: FiaCall) -> Any:
    wrong = call.paged and call.absorbed and len(call.key.shape) == 5 and call.layout.query == "BNSD"
    return call.key if wrong else None


@rule("fia.cache.nz_tile", "key", "an NZ cache's last dim is 16, or 32 for int8")
def nz_tile(call: FiaCall) -> Any:
    if not call.paged or len(call.key.shape) != 5:
        return None
    return call.key if proven(call.key.shape[4] != (32 if call.int8_cache else 16)) else None


@rule("fia.block_size", "block_size", "it is a positive multiple of 16, or of 32 for an int8 cache")
def block_size(call: FiaCall) -> Any:
    size = call["block_size"]
    wrong = call.paged and (size <= 0 or size % (32 if call.int8_cache else 16))
    return size if wrong else None


@rule(
    "fia.block_size.prefill",
    "block_size",
    "for several query tokens it is 128, 256, 384 or 512",
    targets=DEVICES,
)
def block_size_prefill(call: FiaCall) -> Any:
    size = call["block_size"]
    wrong = call.paged and call.prefill and not call.absorbed and size not in (128, 256, 384, 512)
    return size if wrong else None


@rule("fia.block_size.limit", "block_size", "it is at most 512, or 1024 if packed or MLA", targets=DEVICES)
def block_size_limit(call: FiaCall) -> Any:
    size = call["block_size"]
    limit = 1024 if call.layout.packed or call.absorbed else 512
    return size if call.paged and size > limit else None


@rule(
    "fia.cache.merged_heads",
    "key",
    f"KV_N * D of a BnBsH cache is at most {MERGED_HEADS}",
    targets=DEVICES,
    instead="a BnNBsD cache",
)
def merged_heads(call: FiaCall) -> Any:
    wrong = call.paged and len(call.key.shape) == 3 and proven(call.key.shape[2] > MERGED_HEADS)
    return call.key if wrong else None


UNPAGED_ONLY = ("query_padding_size", "kv_padding_size", "key_shared_prefix", "value_shared_prefix")


@rule("fia.cache.exclusive", "block_table", "a paged cache takes neither left padding nor a shared prefix")
def exclusive(call: FiaCall) -> Any:
    given = [name for name in UNPAGED_ONLY if call[name] is not None]
    return f"given with {', '.join(given)}" if call.paged and given else None


RULES = (
    form,
    form_packed,
    form_nz,
    nz_tile,
    block_size,
    block_size_prefill,
    block_size_limit,
    merged_heads,
    exclusive,
)
