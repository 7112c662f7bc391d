"""FIA with a rope part beside query and key: multi-head latent attention (MLA)."""

from __future__ import annotations

from typing import Any

from ..layouts import query_sizes
from .facts import TensorFacts, proven, unequal
from .fia_call import FiaCall
from .fia_form import FLOATS
from .rule import A2_A3, DEVICES, rule

ABSORBED_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "TND", "TND_NTD")
SPLIT_LAYOUTS = ("BSH", "BSND", "TND", "BNSD", "NTD", "BSH_BNSD", "BSND_BNSD", "BNSD_BSND", "NTD_TND")
ABSORBED_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
ABSORBED_EXCLUDES = (
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "antiquant_scale",
    "quant_scale2",
)


@rule("fia.rope.pair", "query_rope", "query_rope and key_rope come together")
def pair(call: FiaCall) -> Any:
    given = {name: call[name] for name in ("query_rope", "key_rope")}
    if (given["query_rope"] is None) == (given["key_rope"] is None):
        return None
    return f"{given['query_rope']} with key_rope {given['key_rope']}"


@rule("fia.rope.query_shape", "query_rope", "it has query's shape but for D")
def query_shape(call: FiaCall) -> Any:
    rope = call.tensor("query_rope")
    if rope is None:
        return None
    wrong = len(rope.shape) != len(call.query.shape) or _indivisible(call, rope, call.heads)
    if not wrong:
        mine, theirs = query_sizes(rope.shape, call.layout, call.heads), call.sizes
        wrong = unequal((mine.batch, mine.heads, mine.seq), (theirs.batch, theirs.heads, theirs.seq))
    return f"{rope} with query {call.query}" if wrong else None


def _indivisible(call: FiaCall, tensor: TensorFacts, heads: int) -> bool:
    return call.layout.query == "BSH" and proven(tensor.shape[2] % heads != 0)


@rule("fia.rope.key_shape", "key_rope", "it has key's shape but for D")
def key_shape(call: FiaCall) -> Any:
    rope = call.tensor("key_rope")
    if rope is None:
        return None
    if len(rope.shape) == len(call.key.shape):
        mine, theirs = call.kv_sizes(rope), call.key_sizes
        if not unequal((mine.batch, mine.heads, mine.seq), (theirs.batch, theirs.heads, theirs.seq)):
            return None
    return f"{rope} with key {call.key}"


@rule("fia.rope.head_dim", "key_rope", "it has query_rope's D")
def head_dim(call: FiaCall) -> Any:
    query, key = call.tensor("query_rope"), call.tensor("key_rope")
    if query is None or key is None:
        return None
    dims = query_sizes(query.shape, call.layout, call.heads).head_dim, call.kv_sizes(key).head_dim
    return f"{key} with query_rope {query}" if proven(dims[0] != dims[1]) else None


@rule("fia.rope.dtype", "query_rope", "both ropes have query's dtype, or a float one when query is int8")
def dtype(call: FiaCall) -> Any:
    query, key = call.tensor("query_rope"), call.tensor("key_rope")
    if query is None or key is None:
        return None
    wanted = (call.query.dtype,) if call.query.dtype.is_floating_point else FLOATS
    return f"{query} with key_rope {key}" if query.dtype not in wanted or key.dtype != query.dtype else None


@rule("fia.rope.size", "query_rope", "its D is 64, beside a head dim of 128 or 512", targets=DEVICES)
def size(call: FiaCall) -> Any:
    rope = call.tensor("query_rope")
    if rope is None:
        return None
    dim = query_sizes(rope.shape, call.layout, call.heads).head_dim
    wrong = proven(dim != 64) or (proven(call.sizes.head_dim != 128) and proven(call.sizes.head_dim != 512))
    return f"{rope} with query {call.query}" if wrong else None


@rule("fia.rope.layout", "input_layout", "it is one that MLA supports for this head dim", targets=DEVICES)
def layout(call: FiaCall) -> Any:
    if not call.rope:
        return None
    allowed = ABSORBED_LAYOUTS if call.absorbed else SPLIT_LAYOUTS
    return (
        f"{call['input_layout']}, not of {', '.join(allowed)}"
        if call["input_layout"] not in allowed
        else None
    )


@rule("fia.mla.kv_heads", "num_key_value_heads", "MLA with D 512 has one latent head")
def kv_heads(call: FiaCall) -> Any:
    return call.kv_heads if call.absorbed and call.kv_heads != 1 else None


@rule(
    "fia.mla.heads",
    "num_heads",
    "MLA with D 512 takes 1, 2, 4, 8, 16, 32, 64 or 128 heads",
    targets=DEVICES,
    instead="heads padded with zeros, and the output cut",
)
def heads(call: FiaCall) -> Any:
    return call.heads if call.absorbed and call.heads not in ABSORBED_HEADS else None


@rule("fia.mla.query_len", "query", "MLA with D 512 takes 1 to 16 query tokens per request", targets=A2_A3)
def query_len(call: FiaCall) -> Any:
    wrong = call.absorbed and not call.layout.packed and proven(call.sizes.seq > 16)
    return call.query if wrong else None


@rule(
    "fia.mla.exclusive",
    "query_rope",
    "MLA with D 512 takes no padding, prefix, antiquant_scale or output scale",
)
def exclusive(call: FiaCall) -> Any:
    given = [call.argument_name(name) for name in ABSORBED_EXCLUDES if call[name] is not None]
    return f"given with {', '.join(given)}" if call.absorbed and given else None


FORM = (pair, query_shape, key_shape)
RULES = (head_dim, dtype, size, layout, kv_heads, heads, query_len, exclusive)
