"""FIA: quantised keys and values, quantised queries, and a quantised output.

``antiquant`` dequantises K and V before the products; "full" quantisation multiplies integers. Modes:
0 per channel or tensor, 1 per token, 2 per tensor and head, 3 per token and head, 4 per token in pages,
5 per token and head in pages.
"""

from __future__ import annotations

from typing import Any

import torch

from .facts import proven, unequal
from .fia_call import FiaCall
from .rule import DEVICES, rule

MODES = range(6)
PER_TOKEN = (1, 3, 4, 5)
FULL_QUANT_V1 = ("dequant_scale1", "quant_scale1", "dequant_scale2")
PACKED_EXCLUDES = ("key_antiquant_scale", "antiquant_scale", "quant_scale2")
FULL_QUANT_V2 = ("dequant_scale_query", "key_antiquant_scale", "value_antiquant_scale")


def _quantised_query(call: FiaCall) -> bool:
    return call.query.dtype == torch.int8


@rule("fia.antiquant.needed", "key_antiquant_scale", "quantised keys and values need their scales")
def needed(call: FiaCall) -> Any:
    if call.key.dtype.is_floating_point or _quantised_query(call):
        return None
    separate = call["key_antiquant_scale"] is not None
    return f"None with key {call.key}" if not separate and call["antiquant_scale"] is None else None


def _pair(call: FiaCall, of: str) -> Any:
    key, value = call[f"key_antiquant_{of}"], call[f"value_antiquant_{of}"]
    if (key is None) == (value is None):
        return None
    return f"{key} with {call.argument_name(f'value_antiquant_{of}')} {value}"


@rule("fia.antiquant.scale_pair", "key_antiquant_scale", "scales of key and value come together")
def scale_pair(call: FiaCall) -> Any:
    return _pair(call, "scale")


@rule("fia.antiquant.offset_pair", "key_antiquant_offset", "offsets of key and value come together")
def offset_pair(call: FiaCall) -> Any:
    return _pair(call, "offset")


@rule(
    "fia.antiquant.mode",
    "key_antiquant_mode",
    "it is 0 to 5, and value's mode too; a key of 0 may go with a value of 1",
)
def mode(call: FiaCall) -> Any:
    key, value = call["key_antiquant_mode"], call["value_antiquant_mode"]
    ok = key in MODES and value in MODES and (key == value or (key, value) == (0, 1))
    return None if ok else f"{key} with value's mode {value}"


def _scale_shapes(call: FiaCall, mode: int) -> list[tuple[Any, ...]]:
    """Shapes a scale may have; a leading 1 is optional where the docs of one version have it."""
    sizes = call.key_sizes
    heads, dim, seq, batch = call.kv_heads, sizes.head_dim, sizes.seq, call.batch
    tokens = call.kv_capacity
    shapes: dict[int, list[tuple[Any, ...]]] = {
        0: [
            (heads, 1, dim),
            (heads, dim),
            (heads * dim,),
            (1, heads, 1, dim),
            (1, heads, dim),
            (1, heads * dim),
            (1,),
        ],
        1: [(batch, tokens), (1, batch, tokens)],
        2: [(heads,)],
        3: [(batch, heads, tokens)],
        4: [(sizes.batch, seq)],
        5: [(sizes.batch, heads, seq)],
    }
    return shapes[mode]


def _bad_scale(call: FiaCall, of: str) -> Any:
    scale, mode = call.tensor(f"{of}_antiquant_scale"), call[f"{of}_antiquant_mode"]
    if scale is None or mode not in MODES or call.key.dtype.is_floating_point:
        return None
    # Per token, a paged cache's scales may cover more tokens than its table.
    allowed = _scale_shapes(call, mode)
    fits = any(len(s) == len(scale.shape) and not _short(scale.shape, s, mode) for s in allowed)
    return None if fits else f"{scale} in mode {mode} with key {call.key}"


def _short(shape: tuple[Any, ...], wanted: tuple[Any, ...], mode: int) -> bool:
    if mode in (1, 3):
        return unequal(shape[:-1], wanted[:-1]) or proven(shape[-1] < wanted[-1])
    return unequal(shape, wanted)


@rule("fia.antiquant.key_scale", "key_antiquant_scale", "its shape is the one of its mode")
def key_scale(call: FiaCall) -> Any:
    return _bad_scale(call, "key")


@rule("fia.antiquant.value_scale", "value_antiquant_scale", "its shape is the one of its mode")
def value_scale(call: FiaCall) -> Any:
    return _bad_scale(call, "value")


@rule(
    "fia.antiquant.scale_dtype",
    "key_antiquant_scale",
    "it is float32 per token, otherwise of query's dtype",
    targets=DEVICES,
)
def scale_dtype(call: FiaCall) -> Any:
    scale = call.tensor("key_antiquant_scale")
    if scale is None or _quantised_query(call):
        return None
    wanted = torch.float32 if call["key_antiquant_mode"] in PER_TOKEN else call.query.dtype
    return scale if scale.dtype != wanted else None


def _unlike(call: FiaCall, offset_name: str, scale_name: str) -> Any:
    offset, scale = call.tensor(offset_name), call.tensor(scale_name)
    if offset is None:
        return None
    same = scale is not None and scale.dtype == offset.dtype and not unequal(scale.shape, offset.shape)
    return None if same else f"{offset} with {call.argument_name(scale_name)} {scale}"


@rule("fia.antiquant.offset", "key_antiquant_offset", "it has its scale's shape and dtype")
def offset(call: FiaCall) -> Any:
    return _unlike(call, "key_antiquant_offset", "key_antiquant_scale")


@rule(
    "fia.antiquant.nz_offset",
    "key_antiquant_offset",
    "an NZ cache is quantised symmetrically: it takes no offset",
)
def nz_offset(call: FiaCall) -> Any:
    return call["key_antiquant_offset"] if call.paged and len(call.key.shape) == 5 else None


@rule("fia.antiquant.merged", "antiquant_scale", "it is (2,) or (2, …) per channel, (2, B, KV) per token")
def merged(call: FiaCall) -> Any:
    scale, mode = call.tensor("antiquant_scale"), call["antiquant_mode"]
    if scale is None:
        return None
    heads, dim = call.kv_heads, call.key_sizes.head_dim
    per_channel: list[tuple[Any, ...]] = [(2,), (2, heads, 1, dim), (2, heads, dim), (2, heads * dim)]
    shapes: dict[int, list[tuple[Any, ...]]] = {0: per_channel, 1: [(2, call.batch, call.kv_capacity)]}
    allowed = shapes.get(mode, [])
    return None if any(not unequal(scale.shape, s) for s in allowed) else f"{scale} in antiquant_mode {mode}"


@rule("fia.antiquant.prefill", "key_antiquant_mode", "for several query tokens it is 0 or 1", targets=DEVICES)
def prefill(call: FiaCall) -> Any:
    wrong = call.prefill and call["key_antiquant_scale"] is not None and not _quantised_query(call)
    return call["key_antiquant_mode"] if wrong and call["key_antiquant_mode"] not in (0, 1) else None


@rule("fia.full_quant.scales", "query", "an int8 query needs int8 keys and values and all of the scales")
def full_quant(call: FiaCall) -> Any:
    if not _quantised_query(call):
        return None
    names = FULL_QUANT_V1 if call.version == 1 else FULL_QUANT_V2
    missing = [call.argument_name(name) for name in names if call[name] is None]
    if call.key.dtype == torch.int8 and not missing:
        return None
    return f"int8 with key {call.key}, without {', '.join(missing) or 'nothing'}"


@rule("fia.full_quant.query_mode", "query_quant_mode", "it is 3, per token and head, for an int8 query")
def query_mode(call: FiaCall) -> Any:
    wrong = call.version == 2 and _quantised_query(call) and call["query_quant_mode"] != 3
    return call["query_quant_mode"] if wrong else None


@rule("fia.full_quant.scale_dtype", "dequant_scale_query", "all three scales of an int8 query are float32")
def full_quant_dtype(call: FiaCall) -> Any:
    if call.version == 1 or not _quantised_query(call):
        return None
    scales = [scale for name in FULL_QUANT_V2 if (scale := call.tensor(name)) is not None]
    wrong = any(scale.dtype != torch.float32 for scale in scales)
    return ", ".join(map(str, scales)) if wrong else None


@rule("fia.full_quant.v1_paged", "query", "an int8 query of v1 has no paged cache and more than one token")
def full_quant_v1(call: FiaCall) -> Any:
    wrong = call.version == 1 and _quantised_query(call) and (call.paged or call.decode)
    return call.query if wrong else None


@rule(
    "fia.quant.packed",
    "input_layout",
    "packed layouts (T) take no quantised keys and no output scale, but for MLA with D 512",
    targets=DEVICES,
)
def packed(call: FiaCall) -> Any:
    if not call.layout.packed or call.absorbed:
        return None
    given = [call.argument_name(name) for name in PACKED_EXCLUDES if call[name] is not None]
    return f"{call['input_layout']} with {', '.join(given)}" if given else None


@rule("fia.output.scale", "quant_scale2", "it is one number or num_heads * D of them, in float32 or bfloat16")
def output_scale(call: FiaCall) -> Any:
    scale = call.tensor("quant_scale2")
    if scale is None:
        return None
    count, dim = scale.numel, call.value_sizes.head_dim
    wrong = proven(count != 1) and proven(count != call.heads * dim)
    return scale if wrong or scale.dtype not in (torch.float32, torch.bfloat16) else None


@rule("fia.output.offset", "quant_offset2", "it has the shape and dtype of the output's scale")
def output_offset(call: FiaCall) -> Any:
    return _unlike(call, "quant_offset2", "quant_scale2")


RULES = (
    needed,
    scale_pair,
    offset_pair,
    mode,
    key_scale,
    value_scale,
    scale_dtype,
    offset,
    nz_offset,
    merged,
    prefill,
    full_quant,
    query_mode,
    full_quant_dtype,
    full_quant_v1,
    packed,
    output_scale,
    output_offset,
)
