"""From the parts that a matcher found to a complete, checked attention site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from npu_compile.passes.recognise.cache_kind import cache_kind, input_storages
from npu_compile.passes.recognise.kv_heads import fold_repeated_heads
from npu_compile.passes.recognise.where_from import module_path, source
from npu_compile.passes.site import AttentionSite, MaskTerm, Operand, ScoreShape, Views
from npu_compile.passes.specialise import specialised
from npu_compile.passes.values import Writes, aten, required_equal, same, value, viewed


class Declined(Exception):
    """Attention that is left as it is; the message is the reason, for a user to act on."""


@dataclass(frozen=True)
class Parts:
    """What a matcher read off the graph; operands are four-dimensional (see :func:`batched`)."""

    form: Literal["sdpa", "softmax"]
    output: fx.Node
    output_views: Views
    query: Operand
    key: Operand
    value: Operand
    scale: float
    masks: tuple[MaskTerm, ...]
    softmax_dtype: torch.dtype
    sink: Operand | None = None
    softcap: float | None = None
    zero_if_empty: bool = False
    nan_if_void: bool = False
    autocast: torch.dtype | None = None
    """What autocast makes of the operands when the program runs; None where it does nothing."""


class Surroundings:
    """Facts about a whole graph that every site of it is checked against."""

    def __init__(self, graph: fx.Graph) -> None:
        self.writes = Writes(graph)
        self.inputs = input_storages(graph)


def batched(read: Operand) -> Operand:
    """An operand of two or three dimensions as (B, N, S, D): leading dimensions are heads of batch 1."""
    rank = len(operand_shape(read))
    if not 2 <= rank <= 4:
        raise Declined(f"queries, keys and values of {rank} dimensions are not supported")
    for _ in range(4 - rank):
        read = viewed(read, aten.unsqueeze.default, 0)
    return read


def unbatched(rank: int) -> Views:
    """The views from the (1, N, Q, D_v) result of :func:`batched` operands back to ``rank`` dimensions."""
    return ((aten.squeeze.dim, (0,)),) * (4 - rank)


def operand_value(read: Operand) -> torch.Tensor:
    """The fake value of an operand with its views, without adding them to the graph."""
    return _through(value(read.node), read.views)


def _through(fake: torch.Tensor, views: Views) -> torch.Tensor:
    for target, arguments in views:
        fake = target(fake, *(a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments))
    return fake


def operand_shape(read: Operand) -> tuple[Any, ...]:
    return tuple(operand_value(read).shape)


def _as_dtype(read: Operand, dtype: torch.dtype) -> Operand:
    return read if operand_value(read).dtype == dtype else viewed(read, aten.to.dtype, dtype)


def assemble(parts: Parts, around: Surroundings) -> AttentionSite:
    """Check the parts against each other and the graph.

    Raises:
        Declined: shapes or dtypes that a fused operator can't take, or a value that is
            overwritten between where the program reads it and where the fused call would.
    """
    query = parts.query
    key, value_ = fold_repeated_heads(parts.key), fold_repeated_heads(parts.value)
    if not same(operand_shape(key)[1], operand_shape(value_)[1]):
        key, value_ = parts.key, parts.value
    if parts.autocast is not None:
        query, key, value_ = (_as_dtype(read, parts.autocast) for read in (query, key, value_))
    batch, heads, q_len, head_dim = operand_shape(query)
    k_batch, kv_heads, k_len, key_dim = operand_shape(key)
    v_batch, _, v_len, value_dim = operand_shape(value_)
    heads, kv_heads = _known("number of query heads", heads), _known("number of key heads", kv_heads)
    head_dim, key_dim = _known("head dim", head_dim), _known("head dim of the keys", key_dim)
    value_dim = _known("value dim", value_dim)
    if (
        not required_equal(k_len, v_len)
        or head_dim != key_dim
        or 0 in (kv_heads, head_dim)
        or heads % kv_heads
    ):
        raise Declined(
            "shapes do not fit: query {}, key {}, value {}".format(*map(operand_shape, (query, key, value_)))
        )
    if not same(batch, k_batch) or not same(batch, v_batch):
        query, key, value_, batch = _broadcast_batch(query, key, value_)
    dtypes = [operand_value(read).dtype for read in (query, key, value_)]
    if len(set(dtypes)) != 1:
        raise Declined("query, key and value have different dtypes: " + ", ".join(str(d) for d in dtypes))
    if not dtypes[0].is_floating_point:
        raise Declined(f"{dtypes[0]} attention has no fused operator")
    if parts.sink is not None:
        _check_sink(parts.sink, (batch, heads, q_len))
    _check_result(parts, (batch, heads, q_len, value_dim), dtypes[0])
    _check_unwritten(parts, (query, key, value_), around.writes)
    return AttentionSite(
        form=parts.form,
        output=parts.output,
        output_views=parts.output_views,
        query=query,
        key=key,
        value=value_,
        scores=ScoreShape(batch, heads, q_len, k_len),
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=value_dim,
        scale=parts.scale,
        masks=parts.masks,
        sink=parts.sink,
        softcap=parts.softcap,
        zero_if_empty=parts.zero_if_empty,
        nan_if_void=parts.nan_if_void,
        softmax_dtype=parts.softmax_dtype,
        cache=cache_kind(key, around.writes, around.inputs),
        module_path=module_path(parts.output),
        source=source(parts.output),
    )


def _known(name: str, size: Any) -> int:
    """A size that the operator takes as a number; where it is symbolic, under a guard that it stays."""
    found = specialised(size)
    if found is None:
        raise Declined(f"the {name} is symbolic")
    return found


def _check_sink(sink: Operand, rows: tuple[Any, ...]) -> None:
    own = operand_shape(sink)
    if len(own) != 4 or not all(same(a, 1) or same(a, b) for a, b in zip(own, rows, strict=False)):
        raise Declined(f"the attention sink {own} does not fit scores of {rows} rows")


def _check_unwritten(parts: Parts, operands: tuple[Operand, Operand, Operand], writes: Writes) -> None:
    """What the fused call reads must be at the output what it was where the program read it."""
    names = ("query", "key", "value", "attention sink")
    for name, read in zip(names, (*operands, parts.sink), strict=True):
        if read is not None and (write := writes.between(read, parts.output)) is not None:
            raise Declined(
                f"the {name} is overwritten ({write.name}) before the attention output is computed"
            )
    for factor in _view_inputs(*operands):
        if (write := writes.between(Operand(factor, factor), parts.output)) is not None:
            raise Declined(
                f"the scale {factor.name} is overwritten ({write.name}) before the output is computed"
            )


def _check_result(parts: Parts, result: tuple[Any, ...], dtype: torch.dtype) -> None:
    """The (B, N, Q, D_v) result must have the program's shape and dtype once it is seen through the views."""
    expected = value(parts.output)
    fake = _through(expected.new_empty(result, dtype=dtype), parts.output_views)
    if fake.ndim != expected.ndim or not all(map(required_equal, fake.shape, expected.shape)):
        raise Declined(f"the result is broadcast from {tuple(fake.shape)} to {tuple(expected.shape)}")
    if dtype != expected.dtype:
        raise Declined(f"the operands are {dtype} and the result is {expected.dtype}")


def _view_inputs(*reads: Operand) -> list[fx.Node]:
    """The tensors that the views of operands take besides, such as a scale."""
    inputs = (one for read in reads for _, arguments in read.views for one in arguments)
    return [one for one in inputs if isinstance(one, fx.Node)]


def _broadcast_batch(query: Operand, key: Operand, value_: Operand) -> tuple[Operand, Operand, Operand, Any]:
    sizes = [operand_shape(read)[0] for read in (query, key, value_)]
    wide = [size for size in sizes if not same(size, 1)]
    if any(not same(size, wide[0]) for size in wide):
        raise Declined(f"batch sizes do not broadcast: {sizes}")
    expanded = [
        read if same(size, wide[0]) else viewed(read, aten.expand.default, [wide[0], -1, -1, -1])
        for read, size in zip((query, key, value_), sizes, strict=True)
    ]
    return expanded[0], expanded[1], expanded[2], wide[0]
