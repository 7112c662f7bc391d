"""The packed call of an attention that sees its own segment only."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import fx

from npu_compile.kernels.targets import Target
from npu_compile.passes.lower.forms import CallForm, Operands, by_token, from_tokens
from npu_compile.passes.lower.legality import illegal
from npu_compile.passes.lower.shared import Shared
from npu_compile.passes.mask.meaning import MaskMeaning
from npu_compile.passes.packed.call import packed_form
from npu_compile.passes.packed.segments import Chunks, Numbered, Segments, segmented
from npu_compile.passes.site import AttentionSite, ScoreShape
from npu_compile.passes.values import aten, same, value


def segmented_form(
    site: AttentionSite,
    operands: Operands,
    meaning: MaskMeaning | None,
    causal_mask: Callable[[torch.device], fx.Node],
    shared: Shared,
    target: Target,
) -> tuple[CallForm | None, tuple[str, ...]]:
    """A legal call in which each segment of each batch element is a sequence, at the insertion point.

    None where the mask ``meaning`` is not such a one, and where the target does not take the call: then with
    a note that says why. ``causal_mask`` gives a device's triangle for modes 2 to 4. Queries and keys are
    the same tokens, so that counting from the bottom right, as modes 3 and 4 do, is counting from the top
    left.
    """
    if meaning is None or not site.plain_softmax or site.zero_if_empty:
        return None, ()
    if (mask := segmented(meaning, site.scores)) is None:
        return None, ()
    scores = site.scores
    tokens = Operands(*(by_token(node) for node in (operands.query, operands.key, operands.value)))
    key = ("segments", mask.segments, str(scores.batch), str(scores.query))
    ends = shared.once(key, lambda: _ends(mask.segments, scores, shared))
    form = packed_form(site, tokens, (ends, ends), target)
    plain, tensors = dict(form.plain), dict(form.tensors)
    if mask.causal:
        plain["sparse_mode"] = 3
        tensors["atten_mask"] = causal_mask(value(operands.query).device)
    if mask.window is not None:
        plain |= {"sparse_mode": 4, "pre_tokens": mask.window - 1, "next_tokens": 0}
    to_bnsd = (*form.to_bnsd, *from_tokens(scores, site.value_head_dim))
    form = replace(form, tensors=tensors, plain=plain, to_bnsd=to_bnsd)
    reason = illegal(form, target)
    return (None, (f"segments are not packed: {reason}",)) if reason is not None else (form, ())


def _ends(segments: Segments, scores: ScoreShape, shared: Shared) -> fx.Node:
    """int64 on the host: where the segments of all batch elements end."""
    if isinstance(segments, Chunks):
        return shared.host_lengths(_chunk_ends(segments, scores, shared))
    return shared.host_lengths(_numbered_ends(segments, scores, shared))


def _chunk_ends(chunks: Chunks, scores: ScoreShape, shared: Shared) -> fx.Node:
    batch, length = shared.number(scores.batch), shared.number(scores.query)
    count = shared.compute(operator.add, length, chunks.shift + chunks.size - 1)
    count = shared.compute(operator.floordiv, count, chunks.size)
    numbers = shared.call(aten.arange.default, count, dtype=torch.int64, device="cpu")
    ends = shared.call(aten.mul.Tensor, shared.call(aten.add.Tensor, numbers, 1), chunks.size)
    ends = shared.call(aten.clamp.default, shared.call(aten.sub.Tensor, ends, chunks.shift), None, length)
    if same(scores.batch, 1):
        return ends
    rows = shared.call(aten.arange.default, batch, dtype=torch.int64, device="cpu")
    before = shared.call(aten.mul.Tensor, shared.call(aten.unsqueeze.default, rows, 1), length)
    return shared.call(aten.reshape.default, shared.call(aten.add.Tensor, before, ends), [-1])


def _numbered_ends(segments: Numbered, scores: ScoreShape, shared: Shared) -> fx.Node:
    """As many ends as tokens: the ends of the segments, and of empty sequences behind the last."""
    numbers = segments.numbers
    following = shared.call(aten.slice.Tensor, numbers, 1, 1)
    changes = shared.call(aten.ne.Tensor, following, shared.call(aten.slice.Tensor, numbers, 1, 0, -1))
    is_end = shared.call(aten.constant_pad_nd.default, changes, [0, 1], True)
    is_end = shared.call(aten.expand.default, is_end, [shared.number(scores.batch), -1])
    is_end = shared.call(aten.reshape.default, is_end, [-1])
    ones = shared.call(aten.ones_like.default, is_end, dtype=torch.int64)
    counts = shared.call(aten.cumsum.default, ones, 0)
    ends = shared.call(aten.where.self, is_end, counts, shared.call(aten.amax.default, counts))
    return shared.call(operator.getitem, shared.call(aten.sort.default, ends), 0)
