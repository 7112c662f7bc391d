"""FIA: what the kernels of a device can do. None of this binds the CPU kernels."""

from __future__ import annotations

from typing import Any

import torch

from .facts import proven
from .fia_call import FiaCall
from .packed_dims import wrong_dims, wrong_sharing, wrong_wide_value
from .rule import A2_A3, ASCEND310P, DEVICES, VLLM_ASCEND, rule


@rule("fia.head_dim.limit", "query", "its D is at most 512", targets=DEVICES)
def head_dim(call: FiaCall) -> Any:
    return call.query if proven(call.sizes.head_dim > 512) else None


@rule(
    "fia.head_dim.aligned",
    "key",
    "its D is a multiple of 16, of 32 for int8, of 64 for int4",
    targets=DEVICES,
    instead="D padded with zeros, the scale unchanged",
)
def head_dim_aligned(call: FiaCall) -> Any:
    by = {torch.int8: 32, torch.int32: 64}.get(call.key.dtype, 16)
    return f"{call.key}, D {call.key_sizes.head_dim}" if proven(call.key_sizes.head_dim % by != 0) else None


@rule(
    "fia.head_dim.packed",
    "query",
    "packed layouts (T) take D 64 or 128, or 192 with V 128 or 192; with rope 128 or 512",
    targets=A2_A3,
    instead="BSND or BNSD with lengths per request",
)
def head_dim_packed(call: FiaCall) -> Any:
    if not call.layout.packed:
        return None
    query, value = call.sizes.head_dim, call.value_sizes.head_dim
    if call.rope:
        wrong = not call.absorbed and (proven(query != 128) or proven(value != 128))
    else:
        wrong = wrong_dims(call["input_layout"], query, value)
    return f"{call.query} with value {call.value}" if wrong else None


@rule(
    "fia.head_dim.packed_gqa",
    "query",
    "packed layouts take D 64 only with a K/V head per query head",
    targets=A2_A3,
)
def head_dim_packed_gqa(call: FiaCall) -> Any:
    wrong = call.layout.packed and wrong_sharing(call.sizes.head_dim, call.heads, call.kv_heads)
    return f"{call.query} over {call.kv_heads} key/value heads" if wrong else None


@rule(
    "fia.head_dim.packed_192",
    "value",
    "V 192 comes without shared K/V heads and without a block_table",
    targets=A2_A3,
)
def head_dim_packed_192(call: FiaCall) -> Any:
    value = call.value_sizes.head_dim
    wrong = call.layout.packed and wrong_wide_value(value, call.heads, call.kv_heads, call.paged)
    return call.value if wrong else None


@rule("fia.num_heads.limit", "num_heads", "it is at most 256", targets=DEVICES)
def heads(call: FiaCall) -> Any:
    return call.heads if call.heads > 256 else None


@rule(
    "fia.batch.limit",
    "query",
    "B is at most 65536, or 128 where D isn't a multiple of 32 bytes",
    targets=DEVICES,
)
def batch(call: FiaCall) -> Any:
    size, width = call.batch, call.sizes.head_dim * call.query.dtype.itemsize
    if size is None:
        return None
    wrong = proven(size > 65536) or (proven(width % 32 != 0) and proven(size > 128))
    return f"{call.query}, B {size}" if wrong else None


@rule(
    "fia.seq.limit", "key", "it has at most 262144 tokens for one query token, else 20971520", targets=DEVICES
)
def seq(call: FiaCall) -> Any:
    limit = 262144 if call.decode else 20971520
    wrong = not call.layout.packed and (proven(call.key_sizes.seq > limit) or proven(call.sizes.seq > limit))
    return f"{call.key} with query {call.query}" if wrong else None


@rule("fia.input_layout.nbsd", "input_layout", "an NBSD output needs 1 to 16 query tokens", targets=DEVICES)
def nbsd(call: FiaCall) -> Any:
    wrong = call.layout.output == "NBSD" and proven(call.sizes.seq > 16)
    return f"{call['input_layout']} with query {call.query}" if wrong else None


CONTIGUOUS = ("query", "key", "value", "query_rope", "key_rope", "atten_mask", "pse_shift", "block_table")


@rule(
    "fia.contiguous",
    "query",
    "query, key, value, ropes and masks are contiguous",
    targets=DEVICES,
    instead=".contiguous()",
)
def contiguous(call: FiaCall) -> Any:
    strided = [name for name in CONTIGUOUS if (t := call.tensor(name)) is not None and not t.contiguous]
    return f"given with {', '.join(strided)} not contiguous" if strided else None


@rule(
    "fia.bug.packed_no_mask_float16",
    "input_layout",
    "packed attention without a mask in float16 was reported to average the values",
    source="vllm-ascend issue 13699",
    targets=A2_A3,
    instead="bfloat16, or BSND with lengths per request",
)
def packed_no_mask(call: FiaCall) -> Any:
    wrong = call.layout.packed and call.mask is None and call.query.dtype == torch.float16
    return call["input_layout"] if wrong and not call.paged and not call.absorbed else None


@rule(
    "fia.ascend310p.mask",
    "atten_mask",
    "there is no masked FIA on 310P",
    source=VLLM_ASCEND,
    targets=ASCEND310P,
)
def mask_310p(call: FiaCall) -> Any:
    return call.mask if call.mask is not None else None


@rule(
    "fia.ascend310p.paged",
    "block_table",
    "there is no paged FIA on 310P",
    source=VLLM_ASCEND,
    targets=ASCEND310P,
)
def paged_310p(call: FiaCall) -> Any:
    return call["block_table"]


RULES = (
    head_dim,
    head_dim_aligned,
    head_dim_packed,
    head_dim_packed_gqa,
    head_dim_packed_192,
    heads,
    batch,
    seq,
    nbsd,
    contiguous,
    packed_no_mask,
    mask_310p,
    paged_310p,
)
