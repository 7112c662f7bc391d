"""The FIA call that computes what a FlashAttention call does."""

from __future__ import annotations

from typing import Any

from torch import fx

from npu_compile.kernels.contract.fia_call import V2_NAMES
from npu_compile.passes.flash_calls.band import Band
from npu_compile.passes.flash_calls.nodes import Nodes
from npu_compile.passes.flash_calls.schemas import FlashCall, NotTranslated
from npu_compile.passes.lower.forms import FIA, FIA_V2, CallForm
from npu_compile.passes.site import Views
from npu_compile.passes.values import aten, same, shape, value


def fia_form(call: FlashCall, nodes: Nodes) -> CallForm:
    """Raises NotTranslated where FIA has no such call."""
    _require_keys(call)
    if call.cu_seqlens_q is not None:
        return _packed(call, nodes)
    if call.block_table is not None:
        return _batch_on_pages(call, nodes)
    return _batch(call, nodes)


def _require_keys(call: FlashCall) -> None:
    paged, packed = call.block_table is not None, call.cu_seqlens_q is not None
    if paged and call.seqused_k is None and call.cu_seqlens_k is None:
        raise NotTranslated("block_table: nothing says how many keys a request has")
    if packed and not paged and (call.cu_seqlens_k is None or call.seqused_k is not None):
        raise NotTranslated("cu_seqlens_q: keys aren't packed as the queries are")
    if call.cu_seqlens_k is not None and not packed:
        raise NotTranslated("cu_seqlens_k: keys are packed, but the queries aren't")
    if (call.k_new is None) != (call.v_new is None):
        raise NotTranslated("k_new, v_new: one of them is missing")
    if call.k_new is not None and (packed or not paged or call.seqused_k is None):
        raise NotTranslated("k_new: new keys are written for a batch with a paged cache and lengths only")


def _packed(call: FlashCall, nodes: Nodes) -> CallForm:
    assert call.cu_seqlens_q is not None
    if call.block_table is not None:
        requests = shape(call.cu_seqlens_q)[0] - 1
        one_each = call.max_seqlen_q == 1 and same(shape(call.q)[0], requests)
        if one_each and call.s_aux is None:
            return _one_token_on_pages(call, nodes, nodes.call(aten.unsqueeze.default, call.q, 1), True)
        return _packed_on_pages(call, nodes, call.q, nodes.ends(call.cu_seqlens_q), one_each, ())
    assert call.cu_seqlens_k is not None
    lengths = {
        "actual_seq_lengths": nodes.ends(call.cu_seqlens_q),
        "actual_seq_lengths_kv": nodes.ends(call.cu_seqlens_k),
    }
    return _form(call, nodes, (call.q, call.k, call.v), "TND", Band.of(call), lengths)


def _batch_on_pages(call: FlashCall, nodes: Nodes) -> CallForm:
    if same(shape(call.q)[1], 1) and call.s_aux is None:
        return _one_token_on_pages(call, nodes, call.q, False)
    rows = nodes.call(aten.flatten.using_ints, call.q, 0, 1)
    one_each = same(shape(call.q)[1], 1)
    return _packed_on_pages(call, nodes, rows, nodes.equal(call.q, True), one_each, _unpacked(call))


def _one_token_on_pages(call: FlashCall, nodes: Nodes, query: fx.Node, packed: bool) -> CallForm:
    """One token sees all keys of its request: no mask, which paged decode gets wrong on devices."""
    _band_on_pages(call)
    lengths = {"actual_seq_lengths_kv": _keys_on_pages(call, nodes)}
    back: Views = ((aten.squeeze.dim, (1,)),) if packed else ()
    return _form(call, nodes, (query, *_pages(call, nodes)), "BSND", Band(None, None), lengths, back)


def _packed_on_pages(
    call: FlashCall, nodes: Nodes, rows: fx.Node, ends: fx.Node, one_each: bool, back: Views
) -> CallForm:
    band = _band_on_pages(call)
    lengths = {"actual_seq_lengths": ends, "actual_seq_lengths_kv": _keys_on_pages(call, nodes)}
    band = Band(None, None) if one_each else band
    return _form(call, nodes, (rows, *_pages(call, nodes)), "TND", band, lengths, back)


def _batch(call: FlashCall, nodes: Nodes) -> CallForm:
    band, queries, keys = Band.of(call), shape(call.q)[1], shape(call.k)[1]
    if call.s_aux is not None:
        if call.seqused_k is not None:
            raise NotTranslated("s_aux: sinks of a batch whose requests have lengths of their own")
        packed = tuple(nodes.call(aten.flatten.using_ints, one, 0, 1) for one in (call.q, call.k, call.v))
        ends = {
            "actual_seq_lengths": nodes.equal(call.q, True),
            "actual_seq_lengths_kv": nodes.equal(call.k, True),
        }
        return _form(call, nodes, packed, "TND", band, ends, _unpacked(call))
    one = same(queries, 1)
    if one and not (band.everything or band.causal):
        raise NotTranslated(f"{band.words}: with one query token FIA ignores windows")
    lengths: dict[str, fx.Node] = {}
    if call.seqused_k is not None:
        lengths["actual_seq_lengths_kv"] = nodes.used(call.seqused_k, 0)
        if not one:
            lengths["actual_seq_lengths"] = nodes.equal(call.q, False)
    elif not one and not band.everything and not _at_most(queries, keys):
        raise NotTranslated(f"{queries} queries over {keys} keys: some queries may see nothing")
    band = Band(None, None) if one else band
    return _form(call, nodes, (call.q, call.k, call.v), "BSND", band, lengths)


def _at_most(queries: Any, keys: Any) -> bool:
    return same(queries, keys) or (isinstance(queries, int) and isinstance(keys, int) and queries <= keys)


def _band_on_pages(call: FlashCall) -> Band:
    band = Band.of(call)
    if not (band.everything or band.causal):
        raise NotTranslated(f"{band.words}: FIA can't read a window from a paged cache")
    return band


def _keys_on_pages(call: FlashCall, nodes: Nodes) -> fx.Node:
    if call.seqused_k is not None:
        return nodes.used(call.seqused_k, 0 if call.k_new is None else shape(call.k_new)[1])
    assert call.cu_seqlens_k is not None
    return nodes.counts(call.cu_seqlens_k)


def _pages(call: FlashCall, nodes: Nodes) -> tuple[fx.Node, fx.Node]:
    """The caches as BnBsH."""
    key, value_ = (nodes.call(aten.flatten.using_ints, cache, 2, 3) for cache in (call.k, call.v))
    return key, value_


def _unpacked(call: FlashCall) -> Views:
    return ((aten.view.default, ([*shape(call.q)[:3], shape(call.v)[-1]],)),)


def _form(
    call: FlashCall,
    nodes: Nodes,
    operands: tuple[fx.Node, ...],
    layout: str,
    band: Band,
    lengths: dict[str, fx.Node],
    back: Views = (),
) -> CallForm:
    names = ("query", "key", "value")
    tensors = {name: nodes.contiguous(node) for name, node in zip(names, operands, strict=True)}
    tensors |= lengths
    heads_axis = 2 if call.block_table is not None or call.cu_seqlens_k is None else 1
    scale = call.softmax_scale
    plain: dict[str, Any] = {
        "num_heads": shape(call.q)[-2],
        "num_key_value_heads": shape(call.k)[heads_axis],
        "scale": shape(call.q)[-1] ** -0.5 if scale is None else scale,
        "input_layout": layout,
        **band.plain,
    }
    if call.block_table is not None:
        tensors["block_table"] = call.block_table
        plain["block_size"] = shape(call.k)[1]
    if not band.everything:
        tensors["atten_mask"] = nodes.mask(value(call.q).device)
    if call.s_aux is None:
        return CallForm(FIA, tensors, plain, back)
    tensors, plain = ({V2_NAMES.get(name, name): a for name, a in args.items()} for args in (tensors, plain))
    return CallForm(FIA_V2, {**tensors, "learnable_sink": call.s_aux}, plain, back)
