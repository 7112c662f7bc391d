"""FIA: masks and sparse modes. True in a mask means masked out."""

from __future__ import annotations

from typing import Any

import torch

from .facts import proven, round_up, unequal
from .fia_call import FiaCall
from .rule import A2_A3, DEVICES, rule

FULL, COMPRESSED, TREE = (0, 1), (2, 3, 4), 9
CAUSAL_MASK = (2048, 2048)
UNLIMITED = 2**31 - 1
"""Default of pre_tokens and next_tokens."""
PLAIN_LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND")


@rule("fia.sparse_mode", "sparse_mode", "it is one of 0, 1, 2, 3, 4, 9")
def sparse_mode(call: FiaCall) -> Any:
    return call.mode if call.mode not in (*FULL, *COMPRESSED, TREE) else None


@rule("fia.mask.dtype", "atten_mask", "it is bool, int8 or uint8")
def dtype(call: FiaCall) -> Any:
    mask = call.mask
    return mask if mask is not None and mask.dtype not in (torch.bool, torch.int8, torch.uint8) else None


@rule("fia.mask.required", "atten_mask", "every sparse_mode but 0 needs a mask")
def required(call: FiaCall) -> Any:
    return f"None with sparse_mode {call.mode}" if call.mask is None and call.mode != 0 else None


@rule(
    "fia.mask.compressed",
    "atten_mask",
    "sparse_mode 2, 3 and 4 take (2048, 2048), (1, 2048, 2048) or (1, 1, 2048, 2048), whatever the lengths",
    instead="kernels.causal_mask",
)
def compressed(call: FiaCall) -> Any:
    mask = call.mask
    if call.mode not in COMPRESSED or mask is None:
        return None
    ones = len(mask.shape) - 2
    wrong = ones not in (0, 1, 2) or unequal(mask.shape, (1,) * ones + CAUSAL_MASK)
    return mask if wrong else None


@rule(
    "fia.mask.full",
    "atten_mask",
    "sparse_mode 0 and 1 take (1, Q, KV), (B, 1, Q, KV) or (1, 1, Q, KV); plain layouts without rope also "
    "(Q, KV), or (B, KV) for one query token; Q and KV may be rounded up to 32",
)
def full(call: FiaCall) -> Any:
    mask = call.mask
    if call.mode not in FULL or mask is None or call.layout.packed:
        return None
    batch, queries, shape = call.sizes.batch, call.sizes.seq, mask.shape
    if len(shape) == 4:
        ok = not proven(shape[1] != 1) and not (proven(shape[0] != 1) and proven(shape[0] != batch))
        rows = shape[2]
    elif len(shape) == 3:
        ok, rows = not proven(shape[0] != 1), shape[1]
    elif len(shape) == 2 and call.decode:
        ok, rows = _two_dims(call) and not proven(shape[0] != batch), queries
    else:
        ok, rows = len(shape) == 2 and _two_dims(call), shape[0] if shape else 0
    ok = ok and _covers(rows, queries) and (call.paged or _covers(shape[-1], call.key_sizes.seq))
    return None if ok else f"{mask} with query {call.query} and key {call.key}"


def _two_dims(call: FiaCall) -> bool:
    dims = call.sizes.head_dim, call.key_sizes.head_dim, call.value_sizes.head_dim
    return call["input_layout"] in PLAIN_LAYOUTS and not call.rope and not proven(dims[1] != dims[2])


def _covers(size: Any, wanted: Any) -> bool:
    """Unless it certainly doesn't: ``size`` is ``wanted``, or ``wanted`` rounded up to 16 or 32."""
    return not (proven(size < wanted) or proven(size > round_up(wanted, 32)))


@rule("fia.mask.paged", "atten_mask", "on a paged cache its last dim covers all of a request's blocks")
def paged(call: FiaCall) -> Any:
    mask = call.mask
    if not call.paged or mask is None or call.mode not in FULL:
        return None
    return f"{mask} for {call.kv_capacity} tokens" if proven(mask.shape[-1] < call.kv_capacity) else None


@rule(
    "fia.mask.tree",
    "atten_mask",
    "sparse_mode 9 takes MLA's (B, Q, Q), or the Q x Q masks in one dim if packed",
)
def tree(call: FiaCall) -> Any:
    mask = call.mask
    if call.mode != TREE or mask is None:
        return None
    queries = call.sizes.seq
    if call.layout.packed:
        wrong = len(mask.shape) != 1
    else:
        wrong = unequal(mask.shape, (call.sizes.batch, queries, queries))
    return mask if wrong or not call.rope else None


@rule(
    "fia.mask.packed",
    "sparse_mode",
    "packed layouts (T) take mode 0 without a mask, or 3 or 4 with the 2048 x 2048 one, or 9 with rope",
)
def packed(call: FiaCall) -> Any:
    if not call.layout.packed or call.mode in (3, 4, TREE) or (call.mode == 0 and call.mask is None):
        return None
    return f"{call.mode} with atten_mask {call.mask}"


@rule("fia.mask.absorbed", "sparse_mode", "MLA with D 512 takes mode 0 without a mask, 3, 4 or 9")
def absorbed(call: FiaCall) -> Any:
    if not call.absorbed or call.mode in (3, 4, TREE) or (call.mode == 0 and call.mask is None):
        return None
    return f"{call.mode} with atten_mask {call.mask}"


@rule(
    "fia.decode.ignored",
    "sparse_mode",
    "with one query token and no rope the operator ignores sparse_mode 2 and 4, pre_tokens and next_tokens",
    instead="causality as actual_seq_lengths_kv, a window as an explicit mask",
)
def ignored_at_decode(call: FiaCall) -> Any:
    if not call.decode or call.rope or call.mask is None or call.mode in (1, 3):
        return None
    pre, following, last = call["pre_tokens"], call["next_tokens"], call.kv_capacity - 1
    # What follows would change nothing, so that ignoring it does no harm.
    if call.mode == 0:
        harmless = pre >= 0 and _reaches(following, last)
    elif call.mode == 4:
        harmless = _reaches(pre, last) and following >= 0
    else:
        harmless = proven(last <= 0)
    return None if harmless else f"{call.mode} with pre_tokens {pre} and next_tokens {following}"


def _reaches(tokens: int, last: Any) -> bool:
    return tokens >= UNLIMITED or proven(tokens >= last)


@rule(
    "fia.band.empty",
    "pre_tokens",
    "in sparse_mode 4, pre_tokens + next_tokens isn't negative",
    source="ops-transformer docs",
)
def band(call: FiaCall) -> Any:
    pre, following = call["pre_tokens"], call["next_tokens"]
    return f"{pre} with next_tokens {following}" if call.mode == 4 and pre + following < 0 else None


@rule("fia.inner_precise", "inner_precise", "it is 0 to 3; 0 or 1 with one query token")
def inner_precise(call: FiaCall) -> Any:
    value = call["inner_precise"]
    return value if value not in ((0, 1) if call.decode else (0, 1, 2, 3)) else None


@rule(
    "fia.inner_precise.packed",
    "inner_precise",
    "packed attention with a key/value head per query head takes 0, or 1 in float16",
    targets=A2_A3,
)
def inner_precise_packed(call: FiaCall) -> Any:
    if not call.layout.packed or call.rope or call.heads != call.kv_heads:
        return None
    allowed = (0, 1) if call.query.dtype == torch.float16 else (0,)
    return call["inner_precise"] if call["inner_precise"] not in allowed else None


@rule(
    "fia.pse.shape",
    "pse_shift",
    "it is (B, num_heads, Q, KV) or (1, num_heads, Q, KV), of query's dtype: heads and keys aren't broadcast",
    source="op-plugin docs, vllm-ascend issue 15503",
)
def pse_shape(call: FiaCall) -> Any:
    pse = call.tensor("pse_shift")
    if pse is None or call.layout.packed:
        return None
    keys = call.kv_capacity
    ok = len(pse.shape) == 4 and not (proven(pse.shape[0] != 1) and proven(pse.shape[0] != call.sizes.batch))
    ok = ok and not proven(pse.shape[1] != call.heads)
    ok = ok and not proven(pse.shape[2] < call.sizes.seq) and not proven(pse.shape[3] < keys)
    return None if ok else f"{pse} with query {call.query} and {keys} keys"


@rule("fia.pse.dtype", "pse_shift", "it has query's dtype, or float16 with an int8 query")
def pse_dtype(call: FiaCall) -> Any:
    pse = call.tensor("pse_shift")
    wanted = torch.float16 if call.query.dtype == torch.int8 else call.query.dtype
    return pse if pse is not None and pse.dtype != wanted else None


@rule("fia.pse.unsupported", "pse_shift", "packed layouts (T), MLA and sparse_mode 9 take none")
def pse_unsupported(call: FiaCall) -> Any:
    excluded = call.layout.packed or call.absorbed or call.mode == TREE
    return call.tensor("pse_shift") if excluded else None


@rule("fia.pse.head_dim", "pse_shift", "it needs a head dim that is a multiple of 16", targets=DEVICES)
def pse_head_dim(call: FiaCall) -> Any:
    wrong = call["pse_shift"] is not None and proven(call.sizes.head_dim % 16 != 0)
    return f"given with head dim {call.sizes.head_dim}" if wrong else None


@rule(
    "fia.bug.paged_decode_mask",
    "atten_mask",
    "a mask on paged decode is wrong from key 513 on, without an error",
    source="vllm-ascend issue 15503",
    targets=DEVICES,
    instead="actual_seq_lengths_kv",
)
def paged_decode_mask(call: FiaCall) -> Any:
    return call.mask if call.paged and call.decode and not call.rope and call.mode in FULL else None


RULES = (
    sparse_mode,
    dtype,
    required,
    compressed,
    full,
    paged,
    tree,
    packed,
    absorbed,
    ignored_at_decode,
    band,
    inner_precise,
    inner_precise_packed,
    pse_shape,
    pse_dtype,
    pse_unsupported,
    pse_head_dim,
    paged_decode_mask,
)
