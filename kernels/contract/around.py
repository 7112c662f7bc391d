"""Norms, rotary embeddings, MLA's projections and training attention."""

from __future__ import annotations

from typing import Any

import torch

from .call import Call, differing
from .facts import proven, unequal
from .rule import DEVICES, META, rule

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
CAUSAL_MASK = (2048, 2048)


@rule("rms_norm.gamma", "gamma", "it has the last dims of the input, and its dtype")
def gamma(call: Call) -> Any:
    x = call.tensor("input" if "input" in call.args else "x1")
    weight = call.tensor("gamma")
    rank = len(weight.shape)
    wrong = weight.dtype != x.dtype or not 1 <= rank <= len(x.shape) or unequal(weight.shape, x.shape[-rank:])
    return f"{weight} with input {x}" if wrong else None


@rule("add_rms_norm.inputs", "x2", "it has x1's shape and dtype")
def addends(call: Call) -> Any:
    x1, x2 = call.tensor("x1"), call.tensor("x2")
    return f"{x2} with x1 {x1}" if x1.dtype != x2.dtype or unequal(x1.shape, x2.shape) else None


@rule("interleave_rope.rank", "x", "x, cos and sin are 4-D (B, N, S, D), of one dtype; N of cos and sin is 1")
def interleave_form(call: Call) -> Any:
    x, cos, sin = (call.tensor(name) for name in ("x", "cos", "sin"))
    ranks = {len(t.shape) for t in (x, cos, sin)}
    ok = (
        ranks == {4}
        and not differing(call, ("x", "cos", "sin"), "dtype")
        and not unequal(cos.shape, sin.shape)
    )
    ok = ok and not proven(cos.shape[1] != 1) and not proven(cos.shape[3] != x.shape[3])
    return None if ok else f"{x} with cos {cos} and sin {sin}"


@rule("interleave_rope.head_dim", "x", "its D is 64", targets=DEVICES)
def interleave_head_dim(call: Call) -> Any:
    return call.tensor("x") if proven(call.tensor("x").shape[-1] != 64) else None


@rule("rotary_mul.mode", "rotary_mode", "it is half or interleave")
def rotary_mode(call: Call) -> Any:
    return call["rotary_mode"] if call["rotary_mode"] not in ("half", "interleave") else None


@rule("rotary_mul.form", "r1", "input, r1 and r2 are 4-D with the same even D, r1 and r2 alike")
def rotary_form(call: Call) -> Any:
    x, r1, r2 = (call.tensor(name) for name in ("input", "r1", "r2"))
    ok = len(x.shape) == len(r1.shape) == 4 and not unequal(r1.shape, r2.shape)
    ok = ok and not proven(r1.shape[-1] != x.shape[-1]) and not proven(x.shape[-1] % 2 != 0)
    return None if ok else f"{r1} with r2 {r2} and input {x}"


@rule("transpose_bmm.rank", "input", "input and weight are 3-D, of one float dtype")
def bmm_form(call: Call) -> Any:
    x, weight = call.tensor("input"), call.tensor("weight")
    ok = len(x.shape) == len(weight.shape) == 3 and x.dtype == weight.dtype and x.dtype in FLOATS
    return None if ok else f"{x} with weight {weight}"


@rule("transpose_bmm.perm", "perm_y", "perm_x1 is 012 or 102, perm_x2 012, perm_y 102", META)
def bmm_perm(call: Call) -> Any:
    given = tuple(tuple(call[name] or default) for name, default in BMM_PERMS.items())
    ok = given[0] in ((0, 1, 2), (1, 0, 2)) and given[1] == (0, 1, 2) and given[2] == (1, 0, 2)
    return None if ok else f"{given[2]} with perm_x1 {given[0]} and perm_x2 {given[1]}"


BMM_PERMS = {"perm_x1": (0, 1, 2), "perm_x2": (0, 1, 2), "perm_y": (1, 0, 2)}


@rule("transpose_bmm.bias", "bias", "it isn't supported", META)
def bmm_bias(call: Call) -> Any:
    return call["bias"]


@rule("transpose_bmm.sizes", "weight", "it has input's batch and inner size")
def bmm_sizes(call: Call) -> Any:
    x, weight = call.tensor("input"), call.tensor("weight")
    batch = x.shape[tuple(call["perm_x1"] or BMM_PERMS["perm_x1"]).index(0)]
    wrong = proven(weight.shape[0] != batch) or proven(weight.shape[1] != x.shape[2])
    return f"{weight} with input {x}" if wrong else None


@rule("transpose_bmm.aligned", "weight", "K and N are multiples of 16", targets=DEVICES)
def bmm_aligned(call: Call) -> Any:
    weight = call.tensor("weight")
    return weight if any(proven(size % 16 != 0) for size in weight.shape[1:]) else None


@rule(
    "mla_prolog.tokens",
    "token_x",
    "it is (T, He) or (B, S, He), and rope_sin and rope_cos have as many dims",
    META,
)
def prolog_tokens(call: Call) -> Any:
    x, sin, cos = (call.tensor(name) for name in ("token_x", "rope_sin", "rope_cos"))
    ok = len(x.shape) in (2, 3) and len(sin.shape) == len(cos.shape) == len(x.shape)
    ok = ok and not unequal(sin.shape[:-1], x.shape[:-1]) and not unequal(sin.shape, cos.shape)
    return None if ok else f"{x} with rope_sin {sin} and rope_cos {cos}"


@rule("mla_prolog.dtype", "token_x", "it is bfloat16 or of 8 bits", targets=DEVICES)
def prolog_dtype(call: Call) -> Any:
    x = call.tensor("token_x")
    return x if x.dtype != torch.bfloat16 and x.dtype.itemsize > 1 else None


@rule("mla_prolog.weights", "weight_uk", "it is (N, D, Hckv), and the other weights fit it")
def prolog_weights(call: Call) -> Any:
    uk, dq, uq, dkv = (call.tensor(f"weight_{name}") for name in ("uk", "dq", "uq_qr", "dkv_kr"))
    if len(uk.shape) != 3 or not len(dq.shape) == len(uq.shape) == len(dkv.shape) == 2:
        return f"{uk} with weight_dq {dq}, weight_uq_qr {uq} and weight_dkv_kr {dkv}"
    heads, dim, latent = uk.shape
    rope, hidden = call.tensor("rope_sin").shape[-1], call.tensor("token_x").shape[-1]
    wanted = (hidden, dq.shape[1]), (dq.shape[1], heads * (dim + rope)), (hidden, latent + rope)
    wrong = any(unequal(t.shape, shape) for t, shape in zip((dq, uq, dkv), wanted, strict=True))
    return f"{uk} with weight_dq {dq}, weight_uq_qr {uq} and weight_dkv_kr {dkv}" if wrong else None


@rule("mla_prolog.cache_mode", "cache_mode", "it is PA_BSND or PA_NZ")
def prolog_cache_mode(call: Call) -> Any:
    return call["cache_mode"] if call["cache_mode"] not in ("PA_BSND", "PA_NZ") else None


@rule("mla_prolog.cache_index", "cache_index", "it is int64 (T,) or (B, S)")
def prolog_index(call: Call) -> Any:
    index = call.optional("cache_index")
    if index is None:
        return "None"
    wrong = index.dtype != torch.int64 or unequal(index.shape, call.tensor("token_x").shape[:-1])
    return f"{index} with token_x {call['token_x']}" if wrong else None


@rule("mla_prolog.heads", "weight_uk", "N is 1, 2, 4, 8, 16, 32, 64 or 128, D 128, Hckv 512", targets=DEVICES)
def prolog_heads(call: Call) -> Any:
    heads, dim, latent = call.tensor("weight_uk").shape
    wrong = all(proven(heads != n) for n in (1, 2, 4, 8, 16, 32, 64, 128))
    return call.tensor("weight_uk") if wrong or proven(dim != 128) or proven(latent != 512) else None


@rule("fusion.layout", "input_layout", "it is BSH, SBH, BSND, BNSD or TND")
def fusion_layout(call: Call) -> Any:
    layout = call["input_layout"]
    return layout if layout not in ("BSH", "SBH", "BSND", "BNSD", "TND") else None


@rule("fusion.rank", "query", "query, key and value have the dims that input_layout names, and one dtype")
def fusion_rank(call: Call) -> Any:
    tensors = [call.tensor(name) for name in ("query", "key", "value")]
    wrong = any(len(t.shape) != len(call["input_layout"]) for t in tensors)
    if not wrong and not differing(call, ("query", "key", "value"), "dtype"):
        return None
    return f"{tensors[0]} with key {tensors[1]} and value {tensors[2]}"


@rule("fusion.heads", "head_num", "it is query's N, or divides query's H, and is a multiple of key's N")
def fusion_heads(call: Call) -> Any:
    heads, layout = call["head_num"], call["input_layout"]
    query, key = call.tensor("query"), call.tensor("key")
    if heads <= 0:
        return heads
    if "N" not in layout:
        wrong = proven(query.shape[2] % heads != 0)
    else:
        axis = layout.index("N")
        wrong = proven(query.shape[axis] != heads) or proven(heads % key.shape[axis] != 0)
    return f"{heads} with query {query} and key {key}" if wrong else None


@rule("fusion.mask", "atten_mask", "it is bool or uint8; sparse_mode 2, 3 and 4 take the (2048, 2048) one")
def fusion_mask(call: Call) -> Any:
    mask, mode = call.optional("atten_mask"), call["sparse_mode"]
    if mask is None:
        return f"None with sparse_mode {mode}" if mode in (1, 2, 3, 4) else None
    wrong = mask.dtype not in (torch.bool, torch.uint8)
    return (
        f"{mask} with sparse_mode {mode}"
        if wrong or (mode in (2, 3, 4) and unequal(mask.shape, CAUSAL_MASK))
        else None
    )


@rule("fusion.lengths", "actual_seq_qlen", "TND needs cumulative actual_seq_qlen and actual_seq_kvlen")
def fusion_lengths(call: Call) -> Any:
    given = call["actual_seq_qlen"], call["actual_seq_kvlen"]
    missing = call["input_layout"] == "TND" and (given[0] is None or given[1] is None)
    return f"{given[0]} with actual_seq_kvlen {given[1]}" if missing else None


@rule("fusion.keep_prob", "keep_prob", "it is above 0 and at most 1")
def fusion_keep_prob(call: Call) -> Any:
    return call["keep_prob"] if not 0 < call["keep_prob"] <= 1 else None


NORM_RULES = (gamma,)
ADD_NORM_RULES = (addends, gamma)
INTERLEAVE_RULES = (interleave_form, interleave_head_dim)
ROTARY_RULES = (rotary_mode, rotary_form)
BMM_FORM = (bmm_form, bmm_perm, bmm_bias)
BMM_RULES = (bmm_sizes, bmm_aligned)
PROLOG_FORM = (prolog_tokens, prolog_weights, prolog_cache_mode)
PROLOG_RULES = (prolog_dtype, prolog_index, prolog_heads)
FUSION_FORM = (fusion_layout, fusion_rank)
FUSION_RULES = (fusion_heads, fusion_mask, fusion_lengths, fusion_keep_prob)
